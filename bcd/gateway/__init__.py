"""The nodes' front door: authenticates streams, relays signed states down and reports up.

It is not trusted with what it relays: desired states are signed by the placer, reports by nodes,
enrolments answered against a pin. A stream comes in at ``streams``, begins in ``hello`` (who, which
versions), lives as a ``session`` (frames in by ``reports`` and ``inventory`` to ``intake``, frames
out by ``outbox``) and is found in ``connected``, which fences, expires and wakes; ``ending`` is how
it goes. ``enrol`` carries enrolments on a port without client certificates; ``application`` gets
the gateway's first certificate, ``identity`` keeps it fresh; ``server`` joins them, inside the
placer's process or alone. May import ``store``, ``signing``, ``wire`` and ``model``.
"""
