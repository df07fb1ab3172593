"""GPU reservations: a control plane that decides and books, and a host daemon that hands over.

The first path element says which process you are in: ``node`` (the daemon ``bcd``), ``gateway``
(``bcd-gateway``), ``placer`` (``bcd-placer``); ``cli`` holds the four commands. They share the
strata ``store`` (the only SQL), ``signing`` (envelopes, keys, certificates), ``wire`` (frames)
and ``model`` (pure values), and import only downwards. ``sim`` makes simulated hosts.
"""

__version__ = "0.1.0"
