"""Signs and stores nodes' desired states, in the transaction that changed their allocations."""

from collections.abc import Iterable

from bcd.model.assignment import Assignment
from bcd.model.ids import NodeId
from bcd.model.pool import PoolPolicy
from bcd.placer.lifecycle.desired import desired_state
from bcd.placer.pki.command import CommandSigner
from bcd.store import allocations, desired_states
from bcd.store.database import Transaction
from bcd.store.desired_states import StoredState


def assign(
    tx: Transaction, signer: CommandSigner, policy: PoolPolicy, node_ids: Iterable[NodeId]
) -> None:
    """Give each node of a pool a new generation with what its allocations call for now.

    Call under the pool's lock. Nodes go in sorted order.
    """
    for node_id in sorted(set(node_ids)):
        epoch, generation = desired_states.newest_version(tx, node_id)
        generation += 1
        state = desired_state(
            node_id,
            (epoch, generation),
            policy,
            (
                Assignment(
                    allocation_id=allocation.id,
                    devices=allocation.devices,
                    until_ms=allocation.until_ms,
                    limits=allocation.limits,
                    binding=allocation.binding,
                    sharing=allocation.sharing,
                )
                for allocation in allocations.on_node(tx, node_id)
            ),
        )
        signed = signer.sign(state)
        desired_states.save(
            tx,
            StoredState(
                node_id=node_id,
                epoch=epoch,
                generation=generation,
                hash=signed.hash,
                key_id=signed.key_id,
                signed=signed.frame,
            ),
        )
