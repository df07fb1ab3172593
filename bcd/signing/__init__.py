"""Signed envelopes, keys and certificates: what lets a node believe a placer, and back.

A payload is encoded once (``wire``), sealed by its author's key (``envelope``), travels and is
stored as bytes, and is opened against a certificate whose chain ends in the pinned CA
(``certificates``). ``keyfile`` keeps keys and chains on disk. May import ``wire`` and ``model``.
"""
