"""Claims on PostgreSQL, whichever plan its optimizer takes."""

import pytest

from bcd.store import work
from bcd.store.database import Database, Transaction
from bcd.store.work import Claim

PLANS = ("", "enable_hashjoin", "enable_mergejoin", "enable_hashagg", "enable_seqscan")


def fill(tx: Transaction, first: int, last: int) -> None:
    for number in range(first, last):
        work.poke(tx, f"rsv_{number:02}", number)


def claim_without(tx: Transaction, setting: str, limit: int) -> list[Claim]:
    if setting:
        tx.run(f"SET LOCAL {setting} = off")
    return list(work.claim(tx, limit))


@pytest.mark.parametrize("setting", PLANS)
@pytest.mark.parametrize("known", [0, 1, 50])
async def test_no_more_is_claimed_than_asked_for_and_the_most_overdue_first(
    database: Database, known: int, setting: str
) -> None:
    """Also where the statistics are of a time when the queue was nearly empty."""
    await database.write(fill, 0, known)
    await database.write(lambda tx: tx.run("ANALYZE work"))
    await database.write(fill, known, 50)
    for first in (0, 8, 16):
        claims = await database.write(claim_without, setting, 8)
        assert [claim.key for claim in claims] == [f"rsv_{first + i:02}" for i in range(8)]
