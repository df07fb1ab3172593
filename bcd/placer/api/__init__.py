"""The gRPC services for people and administrators, behind server TLS and bearer tokens.

``edge`` wraps every handler: caller, unknown fields, errors as ErrorInfo; it is the API edge.
``reservations`` is the tenants' service, ``pools``, ``nodes``, ``quotas`` and ``credentials`` the
rest; ``wait`` holds an answer back.
"""
