"""The only SQL of the project: one schema on SQLite and PostgreSQL.

A transaction is a plain synchronous function of (transaction, values). ``Database.write`` and
``Database.read`` run it on the store's executor: nothing can await inside one, an answer comes
after the commit, and a lost race is tried again. ``database`` is the contract, ``sqlite`` and
``postgresql`` (with ``connection``, and ``lanes`` for what waits together) the engines, ``jobs``
what their threads do for callers, ``open`` chooses one by its URL, ``dialect`` has the little by
which they differ, ``migrate`` applies the numbered schema.

The nouns hold the statements. What is booked: ``reservations`` (and ``refusals``, which never
are), ``allocations``, ``bookings``, ``queue``, ``shadows``, ``extend_holds``, ``maintenance``,
``quotas``, ``confirmations``; read as a whole by ``occupancy`` and ``calendar``. Where: ``pools``
(the lock), ``offers``, ``nodes``, ``labels``, ``atoms``, ``gpu_claims`` (a physical GPU is one
node's), ``hosts``, ``shares``. To and from nodes: ``sessions``, ``inventories``,
``desired_states``, ``reports``. Who gets in: ``enrolments``, ``certificates``, and the epoch in
``control``. What follows: ``work``, ``events``, ``webhooks``, ``deliveries``.

Lock order: pool, claims of GPUs by UUID, quota, reservation, bookings by atom, desired states by
node. May import ``signing``, ``wire`` and ``model``.
"""
