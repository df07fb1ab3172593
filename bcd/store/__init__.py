"""The only SQL of the project: one schema on SQLite and PostgreSQL.

A transaction is a plain synchronous function of (transaction, values). ``Database.write`` and
``Database.read`` run it on the store's executor: nothing can await inside one, an answer comes
after the commit, and a lost race is tried again. The nouns (``reservations``, ``bookings``,
``quotas``, ``work`` ...) hold the statements; ``database`` the contract, ``sqlite`` and
``postgresql`` the engines, ``migrate`` the numbered schema. Lock order: pool, quota, reservation,
bookings by atom, desired states by node. May import ``signing``, ``wire`` and ``model``.
"""
