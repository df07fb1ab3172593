"""Where a request fits: pure planning over a view of the pool, and the guarded booking.

``shape`` knows how a node's devices lie (links, NUMA, sharing), ``choose`` picks devices on one
node, ``timeline`` says what is booked when, ``node`` and ``view`` hold nodes and pools of them with
``planes`` (and ``parts`` of their buckets) as the index over many nodes, ``search`` finds the best
nodes for a ``demand``, ``gang`` those that stand together, ``earliest`` when it would fit,
``unschedulable`` why it does not. ``views`` keeps the views fresh, ``booking`` plans on them and
``writing`` books; ``allowed`` says what the pool lets a request have, ``shadow`` keeps free what
the oldest waiting one needs, and ``vain`` knows for whom nobody need yield. Only the first five do
IO.
"""
