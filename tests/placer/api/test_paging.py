"""Pages are cut by entries and by bytes, and nothing falls between two (spec 15)."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from bcd.placer.api.paging import MAX_PAGE_BYTES, cut_messages
from bcd.wire.compute.v1 import admin_pb2 as pb

MIB = 1 << 20


@given(st.lists(st.integers(0, MIB), max_size=12), st.integers(1, 12))
def test_pages_hold_everything_once_and_no_more_than_a_client_takes(
    sizes: Sequence[int], limit: int
) -> None:
    nodes = [pb.Node(id=f"{i:02}", hostname="h" * size) for i, size in enumerate(sizes)]
    seen: list[str] = []
    following = "-"
    while following:
        rest = nodes[len(seen) :]
        page, following = cut_messages(rest[: limit + 1], limit, lambda node: node.id)
        size = sum(node.ByteSize() for node in page)
        full = len(page) == limit or size > MAX_PAGE_BYTES
        assert len(page) <= limit
        assert size < 4 * MIB
        assert bool(following) == (len(page) < len(rest))
        assert full or not following
        seen += [node.id for node in page]
        assert following in ("", *seen[-1:])
    assert seen == [node.id for node in nodes]
