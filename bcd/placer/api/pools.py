"""Pools: seen by those who book in them, made and changed by administrators."""

from collections.abc import Sequence
from dataclasses import dataclass

from bcd.model.caller import Caller
from bcd.model.errors import AccessDenied, InvalidState
from bcd.model.ids import PoolId
from bcd.model.pool import PoolPolicy
from bcd.model.texts import check_text
from bcd.placer.api.edge import Context, Edge, require_admin
from bcd.placer.api.paging import cut, page_of
from bcd.placer.api.pool_policy import encode_policy, updated_policy
from bcd.placer.lifecycle.assign import assign
from bcd.placer.pki.command import CommandSigner
from bcd.store import desired_states, enrolments, nodes, offers, pools, work
from bcd.store.database import Database, Transaction
from bcd.store.pools import Pool, PoolLock, Usage
from bcd.wire.compute.v1 import admin_pb2 as pb
from bcd.wire.compute.v1 import admin_pb2_grpc


def require_tenant(caller: Caller, tenant_id: str) -> None:
    """Raises AccessDenied unless the caller acts for the tenant or administers.

    No tenant stands for all of them.
    """
    if caller.admin:
        return
    if not tenant_id:
        raise AccessDenied(
            "only an administrator may ask for all tenants at once; name yours, or use an"
            " administrator's token",
            tenantId="",
        )
    if tenant_id not in caller.tenants:
        raise AccessDenied(f"the token is not for tenant {tenant_id[:64]}", tenantId=tenant_id[:64])


def require_sight(caller: Caller, tenant_id: str) -> None:
    """Raises AccessDenied unless the caller acts for the tenant; administrators need name none."""
    if tenant_id or not caller.admin:
        require_tenant(caller, tenant_id)


def seen_pool(tx: Transaction, tenant_id: str, pool_id: str) -> Pool:
    """A pool that a tenant owns or was offered, any for none; raises NotFound."""
    pool = pools.get(tx, PoolId(pool_id[:64]))
    if tenant_id:
        offers.terms(tx, pool, tenant_id)
    elif pool.deleted:
        raise pools.missing(pool_id)
    return pool


def lock_pool(tx: Transaction, pool_id: str) -> PoolLock:
    """The lock of a pool that was not deleted; raises NotFound."""
    held = pools.lock(tx, PoolId(pool_id[:64]))
    if held.pool.deleted:
        raise pools.missing(pool_id)
    return held


@dataclass(frozen=True, slots=True)
class PoolCalls:
    """Calls about pools, for verified callers."""

    database: Database
    signer: CommandSigner

    async def create_pool(
        self, caller: Caller, request: pb.CreatePoolRequest
    ) -> pb.CreatePoolResponse:
        """Add a pool of a tenant."""
        require_admin(caller)
        policy = updated_policy(PoolPolicy(), request.policy)
        name = check_text("name", request.name)
        tenant_id = check_text("tenantId", request.tenant_id)
        region = check_text("region", request.region)
        pool = await self.database.write(pools.create, name, tenant_id, region, policy)
        return pb.CreatePoolResponse(pool=_encode(pool, Usage()))

    async def get_pool(self, caller: Caller, request: pb.GetPoolRequest) -> pb.GetPoolResponse:
        """One pool that the tenant owns or was offered."""
        require_sight(caller, request.tenant_id)
        pool = await self.database.read(_seen, request.tenant_id, request.pool_id)
        return pb.GetPoolResponse(pool=pool)

    async def list_pools(
        self, caller: Caller, request: pb.ListPoolsRequest
    ) -> pb.ListPoolsResponse:
        """A page of a tenant's pools, by name; an administrator may leave the tenant out."""
        require_sight(caller, request.tenant_id)
        cursor, limit = page_of(request)
        found = await self.database.read(_page, request.tenant_id, cursor, limit + 1)
        shown, following = cut(found, limit, lambda pool: pool.id)
        return pb.ListPoolsResponse(pools=shown, next_cursor=following)

    async def update_pool(
        self, caller: Caller, request: pb.UpdatePoolRequest
    ) -> pb.UpdatePoolResponse:
        """Change a pool's policy; what is booked keeps what it has."""
        require_admin(caller)
        return pb.UpdatePoolResponse(pool=await self.database.write(self._update, request))

    async def delete_pool(
        self, caller: Caller, request: pb.DeletePoolRequest
    ) -> pb.DeletePoolResponse:
        """Delete an empty pool; raises InvalidState for another."""
        require_admin(caller)
        await self.database.write(_delete, request.pool_id)
        return pb.DeletePoolResponse()

    def _update(self, tx: Transaction, request: pb.UpdatePoolRequest) -> pb.Pool:
        """Everything that was planned under the old policy is planned anew.

        What the hosts can give, and the slots of their GPUs, follow when the hosts are woken.
        """
        held = lock_pool(tx, request.pool_id)
        pool = held.pool
        policy = updated_policy(pool.policy, request.policy, request.reset)
        pools.set_policy(tx, pool.id, policy)
        node_ids = [node.id for node in nodes.in_pool(tx, pool.id)]
        pools.note_changes(tx, held, node_ids, "node")
        if policy.host_reserve != pool.policy.host_reserve:
            told = [i for i in node_ids if desired_states.get(tx, i) is not None]
            assign(tx, self.signer, policy, told)
        tx.wake("pool", pool.id)
        work.poke(tx, pool.id, held.now_ms)
        return _encode(pools.get(tx, pool.id), pools.usage(tx, pool.id, held.now_ms))


def _seen(tx: Transaction, tenant_id: str, pool_id: str) -> pb.Pool:
    pool = seen_pool(tx, tenant_id, pool_id)
    return _encode(pool, pools.usage(tx, pool.id, tx.now_ms()))


def _page(tx: Transaction, tenant_id: str, cursor: str, limit: int) -> Sequence[pb.Pool]:
    now_ms = tx.now_ms()
    found = pools.page(tx, tenant_id, cursor, limit)
    return [_encode(pool, pools.usage(tx, pool.id, now_ms)) for pool in found]


def _delete(tx: Transaction, pool_id: str) -> None:
    """The tokens go first: nobody joins between the look at the nodes and the commit."""
    pool = lock_pool(tx, pool_id).pool
    enrolments.drop_tokens(tx, pool_id=pool.id)
    if nodes.in_pool(tx, pool.id):
        raise InvalidState(f"pool {pool.id} has nodes; remove them first", poolId=pool.id)
    if pools.has_reservations(tx, pool.id):
        raise InvalidState(
            f"pool {pool.id} has reservations that have not ended; have their owners"
            " release or cancel them first",
            poolId=pool.id,
        )
    pools.delete(tx, pool.id)
    work.drop(tx, pool.id)


def _encode(pool: Pool, usage: Usage) -> pb.Pool:
    return pb.Pool(
        id=pool.id,
        name=pool.name,
        tenant_id=pool.tenant_id,
        region=pool.region,
        policy=encode_policy(pool.policy),
        nodes=usage.nodes,
        nodes_schedulable=usage.schedulable,
        gpus=usage.devices,
        gpus_free=usage.free,
    )


class PoolsServicer(admin_pb2_grpc.PoolsServiceServicer):
    """The generated service's methods, each through the edge."""

    def __init__(self, edge: Edge, calls: PoolCalls) -> None:
        self._edge = edge
        self._calls = calls

    async def CreatePool(  # noqa: N802 - the service's name
        self, request: pb.CreatePoolRequest, context: Context
    ) -> pb.CreatePoolResponse:
        return await self._edge.serve(self._calls.create_pool, request, context)

    async def GetPool(  # noqa: N802
        self, request: pb.GetPoolRequest, context: Context
    ) -> pb.GetPoolResponse:
        return await self._edge.serve(self._calls.get_pool, request, context)

    async def ListPools(  # noqa: N802
        self, request: pb.ListPoolsRequest, context: Context
    ) -> pb.ListPoolsResponse:
        return await self._edge.serve(self._calls.list_pools, request, context)

    async def UpdatePool(  # noqa: N802
        self, request: pb.UpdatePoolRequest, context: Context
    ) -> pb.UpdatePoolResponse:
        return await self._edge.serve(self._calls.update_pool, request, context)

    async def DeletePool(  # noqa: N802
        self, request: pb.DeletePoolRequest, context: Context
    ) -> pb.DeletePoolResponse:
        return await self._edge.serve(self._calls.delete_pool, request, context)
