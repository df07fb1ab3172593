"""How a host that lost its identity gets the same one again: the one sentence for it.

Under a new node id its holds would be those of a stranger (``others``), so every remedy names
this way, and none a plain enrolment.
"""


def join_again(node_id: str) -> str:
    """What to do on both sides, for the end of a message."""
    return (
        f"join again as the node that it was: better-compute token join --node {node_id}, then here"
        " bcd enroll with that token"
    )


# For where nothing says any more which node this host was.
JOIN_AGAIN_AS_BEFORE = f"{join_again('ID')} (better-compute nodes shows the ids)"
