"""Frames and documents: turns protobuf messages into model values and back.

``node`` and ``compute`` hold the generated code of the two protocols. Untrusted frames are
parsed into values here, within bounds, and nothing behind this package sees a raw message
except the ends of the streams and the API's edge. May import ``model`` only.
"""
