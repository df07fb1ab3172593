"""Each GPU's part of a pool's hosts, kept beside their capacity: creates read it all the time."""

from fractions import Fraction

from bcd.model.host import PerGpu
from bcd.model.ids import PoolId
from bcd.store import pools
from bcd.store.database import Row, Transaction
from bcd.store.pools import Pool


def keep(tx: Transaction, pool_id: PoolId) -> None:
    """Bring a pool's smallest share in step with its hosts. Call under the pool's lock."""
    rows = tx.all(
        "SELECT DISTINCT c.allocatable_vcpu AS vcpu, c.allocatable_memory_gib AS memory_gib,"
        " c.gpus AS gpus FROM host_capacity c JOIN nodes n ON n.id = c.node_id"
        " WHERE n.pool_id = :pool_id AND c.gpus > 0",
        pool_id=pool_id,
    )
    tx.run("DELETE FROM pool_shares WHERE pool_id = :pool_id", pool_id=pool_id)
    if not rows:
        return
    vcpu = min(Fraction(row["vcpu"], row["gpus"]) for row in rows)
    memory = min(Fraction(row["memory_gib"], row["gpus"]) for row in rows)
    tx.run(
        "INSERT INTO pool_shares (pool_id, vcpu, vcpu_gpus, memory_gib, memory_gpus)"
        " VALUES (:pool_id, :vcpu, :vcpu_gpus, :memory_gib, :memory_gpus)",
        pool_id=pool_id,
        vcpu=vcpu.numerator,
        vcpu_gpus=vcpu.denominator,
        memory_gib=memory.numerator,
        memory_gpus=memory.denominator,
    )


def least(tx: Transaction, pool_id: PoolId) -> PerGpu | None:
    """What every GPU host of a pool leaves at least for each GPU, before the policy's ratio.

    None for a pool whose GPU hosts have no capacity on record: it books no host resources.
    """
    row = tx.one("SELECT * FROM pool_shares WHERE pool_id = :pool_id", pool_id=pool_id)
    return None if row is None else _share(row)


def with_pool(tx: Transaction, pool_id: PoolId) -> tuple[Pool, PerGpu | None]:
    """A pool, also a deleted one, with ``least`` of it, in one look; raises NotFound."""
    row = tx.one(
        "SELECT p.*, s.vcpu, s.vcpu_gpus, s.memory_gib, s.memory_gpus FROM pools p"
        " LEFT JOIN pool_shares s ON s.pool_id = p.id WHERE p.id = :pool_id",
        pool_id=pool_id,
    )
    if row is None:
        raise pools.missing(pool_id)
    return pools.stored(row), None if row["vcpu"] is None else _share(row)


def _share(row: Row) -> PerGpu:
    return PerGpu(
        Fraction(row["vcpu"], row["vcpu_gpus"]), Fraction(row["memory_gib"], row["memory_gpus"])
    )
