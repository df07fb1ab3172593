"""Pure values that every process shares: ids, units, devices, hosts, assignments, reservations.

May import nothing of the project and nothing that touches the machine, the clock or the
network. Values that have a JSON form (in the database, in files, on the command line) are
``msgspec.Struct`` with camel-case names, so that one definition gives the type, the bounds and
the codec; the others are frozen dataclasses. Only ``pace`` changes: it counts what happened.
"""
