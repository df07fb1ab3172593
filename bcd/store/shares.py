"""Each GPU's part of a pool's hosts, kept beside their capacity: creates read it all the time."""

from fractions import Fraction

from bcd.model.host import PerGpu
from bcd.model.ids import PoolId
from bcd.store.database import Transaction


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
    if row is None:
        return None
    return PerGpu(
        Fraction(row["vcpu"], row["vcpu_gpus"]), Fraction(row["memory_gib"], row["memory_gpus"])
    )
