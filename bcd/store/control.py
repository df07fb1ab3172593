"""The control plane's epoch: raised after a restore from backup (spec 11.6)."""

from bcd.store.database import Transaction


def epoch(tx: Transaction) -> int:
    """The current control epoch."""
    row = tx.one("SELECT value FROM control WHERE key = 'epoch'")
    assert row is not None
    return int(row["value"])


def raise_epoch(tx: Transaction) -> int:
    """Start a new epoch; daemons refuse states of older ones from then on."""
    tx.run("UPDATE control SET value = value + 1 WHERE key = 'epoch'")
    return epoch(tx)
