"""Where a request fits: pure planning over a view of the pool, and the guarded booking.

``shape`` knows how a node's devices lie (links, NUMA, sharing), ``choose`` picks devices on one
node, ``view`` holds a pool's nodes and bookings, ``search`` finds the best node, ``unschedulable``
explains why none fits. ``booking`` keeps the views fresh, plans and books; only it does IO.
"""
