"""What nodes have and whether they are there: inventories to atoms, sessions to reachability.

``inventory`` applies received snapshots: ``devices`` makes atoms of them, slots of shared GPUs
among them, and ``allocatable`` says what a host leaves to be booked. ``hosts`` keeps those amounts
in step; ``reachability`` judges sessions. They run as loops and wake the reservations and pools
that a change concerns.
"""
