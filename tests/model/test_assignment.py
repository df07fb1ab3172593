"""The name of a hold's slice, and the way back from it."""

import pytest

from bcd.model.assignment import allocation_of_slice, slice_name
from tests.node.world import alloc_id


def test_the_name_of_a_slice_leads_back_to_its_allocation() -> None:
    assert allocation_of_slice(slice_name(alloc_id(1))) == alloc_id(1)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "bcd-alloc.slice",
        "bcd-alloc-.slice",
        str(alloc_id(1)),
        f"{alloc_id(1)}.slice",
        f"bcd-alloc-{alloc_id(1)}",
        f"bcd-alloc-{alloc_id(1)}.new",
        f"bcd-alloc-{alloc_id(1)}.slice.slice",
        f"bcd-alloc-bcd-alloc-{alloc_id(1)}.slice",
        "bcd-alloc-doctor.slice",
    ],
)
def test_every_other_name_is_no_slice_of_an_allocation(name: str) -> None:
    assert allocation_of_slice(name) is None
