"""The gRPC services for people and administrators, behind server TLS and bearer tokens.

``edge`` wraps every handler: caller, unknown fields, ``texts`` that no database keeps, errors as
ErrorInfo; ``services`` puts them on a server. ``reservations`` is the tenants' service, and
``wait`` holds its answers back; ``capacity`` previews creates and shows a ``calendar``,
``confirmations`` asks persons about their agents, ``events`` streams and lists, ``webhooks`` sends.
The rest is ``pools`` (with ``pool_policy``), ``offers``, ``quotas``, ``nodes`` (with
``node_messages``), ``maintenance`` and ``credentials``; ``paging`` cuts their lists.
"""
