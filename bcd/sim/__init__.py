"""Simulated hosts: the same daemon, with GPUs and slices that are made up.

``profile`` reads what a machine looks like, ``machine`` makes a scratch root of it (so that the
real /proc and /sys reader works on it), ``gpus`` and ``slices`` implement the two ports,
``faults`` is what may go wrong, ``fleet`` runs many daemons in one process. May import ``node``
and below; never placer, gateway or store.
"""
