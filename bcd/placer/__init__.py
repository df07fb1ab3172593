"""The control plane ``bcd-placer``: decides, charges, books, signs and verifies.

One create: ``api.reservations`` (caller, unknown fields) -> ``admission.create``: ``request`` gives
the normal form, transaction 1 writes the draft with the ``share`` of the host that it books,
``policy`` decides with no transaction open, transaction 2 charges ``quota`` and lets
``lifecycle.seek`` look for a place: ``placement.booking`` plans over a ``view`` of the pool and
books guarded rows, else ``lifecycle.preempt`` asks spot reservations to yield ->
``lifecycle.apply`` writes state, event and next moment. A pool with the queued placer leaves the
looking to ``lifecycle.pending``.
One moment of a reservation: ``lifecycle.worker`` claims it from the work queue ->
``lifecycle.reconcile`` loads ``facts``, ``decide`` (pure) says what follows, ``apply`` does it, and
``lifecycle.assign`` signs the nodes' new desired states, all in one transaction.
One report: ``lifecycle.judge`` verifies stored bytes (``attestation``) and wakes its reservation.
One event: written with its change, ordered, watched and delivered by ``events``.

``capacity`` turns inventories into atoms and host amounts, and sessions into reachability; ``pki``
holds the CA, the command key and the bearer tokens' issuer. ``server`` puts it all together from
``settings``; everything that recurs is one of its ``loops``, and ``upkeep`` the one that renews,
signs again and throws away. Never imports ``gateway`` or ``node``.
"""
