"""What nodes have and whether they are there: inventories to atoms, sessions to reachability.

``inventory`` applies received snapshots; ``reachability`` judges sessions. Both run as loops and
wake the reservations and pools that a change concerns.
"""
