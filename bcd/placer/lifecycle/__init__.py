"""The life of a reservation: legal moves, what follows from the facts, and doing it.

``transitions`` is the one table of moves, with the moments at which a reservation is looked at
again; ``facts`` reads what a decision looks at, and ``decide`` says which move that calls for;
``apply`` makes a move with everything that belongs to it, in the caller's transaction. ``seek`` is
the one way to bookings: by ``placement``, or where that finds nothing by ``preempt``, for which
``victims`` chooses who yields. At the start ``handover`` fixes how nodes get the devices, with
``limits`` of the host and ``slots`` of shared GPUs; ``desired`` makes a node's state of it and
``assign`` signs it. ``reconcile`` ties these together for one reservation, ``pending`` for a pool's
waiting ones; ``judge`` and ``attestation`` verify reports; ``worker`` runs it all. ``confirming``
waits for a person's word, ``reassign`` hands reservations to a successor, ``maintenance`` keeps
whole nodes free. Every change to a reservation happens under its pool's lock.
"""
