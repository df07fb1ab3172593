"""The control plane ``bcd-placer``: decides, charges, books, signs and verifies.

One create: ``api.reservations`` (caller, unknown fields) -> ``admission.create``: ``request`` gives
the normal form, transaction 1 writes the draft, ``policy`` decides with no transaction open,
transaction 2 charges ``quota`` and calls ``placement.booking``, which plans over a ``view`` of the
pool and books guarded rows -> ``lifecycle.apply`` writes state, event and next moment.
One moment of a reservation: ``lifecycle.worker`` claims it from the work queue ->
``lifecycle.reconcile`` loads facts, ``decide`` (pure) says what follows, ``apply`` does it, and
``lifecycle.assign`` signs the nodes' new desired states, all in one transaction.
One report: ``lifecycle.judge`` verifies stored bytes (``attestation``) and wakes its reservation.
``capacity`` turns inventories into atoms and sessions into reachability; ``pki`` holds the CA, the
command key and the bearer tokens' issuer; ``upkeep`` renews, signs again and throws away. Never
imports ``gateway`` or ``node``.
"""
