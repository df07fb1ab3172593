"""The life of a reservation: legal moves, what follows from the facts, and doing it.

``transitions`` is the one table of moves; ``decide`` says which move the facts call for; ``apply``
makes a move with everything that belongs to it, in the caller's transaction; ``assign`` signs the
desired states; ``reconcile`` ties these together for one reservation, ``pending`` for a pool's
waiting ones; ``judge`` and ``attestation`` verify reports; ``worker`` runs it all. Every change to
a reservation happens under its pool's lock.
"""
