"""Pools and quotas: listed by their tenants, made by administrators."""

from dataclasses import dataclass

from bcd.model.caller import Caller
from bcd.model.device import DeviceClass
from bcd.model.errors import AccessDenied, InvalidInput
from bcd.model.pool import MAX_TURNAROUND_MS, PlacerKind, PoolPolicy
from bcd.model.texts import check_text
from bcd.placer.api.edge import Context, Edge, require_admin
from bcd.store import pools, quotas
from bcd.store.database import Database, Transaction
from bcd.store.pools import Pool
from bcd.store.quotas import Quota
from bcd.wire.compute.v1 import admin_pb2 as pb
from bcd.wire.compute.v1 import admin_pb2_grpc

MAX_QUOTA = 1 << 40
_RESOURCES = (*DeviceClass, "vcpu", "memoryGiB")


def require_tenant(caller: Caller, tenant_id: str) -> None:
    """Raises AccessDenied unless the caller acts for the tenant or administers."""
    if not caller.admin and tenant_id not in caller.tenants:
        raise AccessDenied(f"the token is not for tenant {tenant_id[:64]}", tenantId=tenant_id[:64])


@dataclass(frozen=True, slots=True)
class PoolCalls:
    """Calls about pools and quotas, for verified callers."""

    database: Database

    async def create_pool(
        self, caller: Caller, request: pb.CreatePoolRequest
    ) -> pb.CreatePoolResponse:
        """Add a pool of a tenant."""
        require_admin(caller)
        policy = _policy(request.policy)
        name = check_text("name", request.name)
        tenant_id = check_text("tenantId", request.tenant_id)
        region = check_text("region", request.region)
        pool = await self.database.write(pools.create, name, tenant_id, region, policy)
        return pb.CreatePoolResponse(pool=_encode(pool, pools.Usage()))

    async def list_pools(
        self, caller: Caller, request: pb.ListPoolsRequest
    ) -> pb.ListPoolsResponse:
        """The pools of one tenant; an administrator may leave the tenant out to see all."""
        if request.tenant_id or not caller.admin:
            require_tenant(caller, request.tenant_id)
        found = await self.database.read(_pools_of, request.tenant_id)
        return pb.ListPoolsResponse(pools=[_encode(*entry) for entry in found])

    async def set_quota(self, caller: Caller, request: pb.SetQuotaRequest) -> pb.SetQuotaResponse:
        """Set a tenant's ceiling for a resource."""
        require_admin(caller)
        if not 0 <= request.limit <= MAX_QUOTA:
            raise InvalidInput("limit", f"must be 0 to {MAX_QUOTA}")
        if request.resource not in _RESOURCES:
            raise InvalidInput("resource", f"must be one of {', '.join(_RESOURCES)}")
        quota = await self.database.write(
            quotas.set_ceiling,
            check_text("tenantId", request.tenant_id),
            request.resource,
            request.limit,
        )
        return pb.SetQuotaResponse(quota=_encode_quota(quota))

    async def list_quotas(
        self, caller: Caller, request: pb.ListQuotasRequest
    ) -> pb.ListQuotasResponse:
        """A tenant's quotas."""
        require_tenant(caller, request.tenant_id)
        found = await self.database.read(quotas.of_tenant, request.tenant_id)
        return pb.ListQuotasResponse(quotas=[_encode_quota(quota) for quota in found])


def _policy(policy: pb.PoolPolicy) -> PoolPolicy:
    if policy.placer not in ("", *PlacerKind):
        raise InvalidInput("policy.placer", f"must be one of {', '.join(PlacerKind)}")
    if not 0 <= policy.turnaround_ms <= MAX_TURNAROUND_MS:
        raise InvalidInput("policy.turnaroundMs", f"must be 0 to {MAX_TURNAROUND_MS}")
    placer = PlacerKind(policy.placer or PlacerKind.INLINE)
    return PoolPolicy(turnaround_ms=policy.turnaround_ms, placer=placer)


def _pools_of(tx: Transaction, tenant_id: str) -> list[tuple[Pool, pools.Usage]]:
    now_ms = tx.now_ms()
    found = [pool for pool in pools.every(tx) if tenant_id in ("", pool.tenant_id)]
    return [(pool, pools.usage(tx, pool.id, now_ms)) for pool in found]


def _encode(pool: Pool, usage: pools.Usage) -> pb.Pool:
    return pb.Pool(
        id=pool.id,
        name=pool.name,
        tenant_id=pool.tenant_id,
        region=pool.region,
        policy=pb.PoolPolicy(
            turnaround_ms=pool.policy.turnaround_ms, placer=pool.policy.placer.value
        ),
        nodes=usage.nodes,
        nodes_schedulable=usage.schedulable,
        gpus=usage.devices,
        gpus_free=usage.free,
    )


def _encode_quota(quota: Quota) -> pb.Quota:
    return pb.Quota(
        tenant_id=quota.tenant_id,
        resource=quota.resource,
        limit=quota.ceiling,
        used=quota.used,
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

    async def ListPools(  # noqa: N802
        self, request: pb.ListPoolsRequest, context: Context
    ) -> pb.ListPoolsResponse:
        return await self._edge.serve(self._calls.list_pools, request, context)


class QuotasServicer(admin_pb2_grpc.QuotasServiceServicer):
    """The generated service's methods, each through the edge."""

    def __init__(self, edge: Edge, calls: PoolCalls) -> None:
        self._edge = edge
        self._calls = calls

    async def SetQuota(  # noqa: N802 - the service's name
        self, request: pb.SetQuotaRequest, context: Context
    ) -> pb.SetQuotaResponse:
        return await self._edge.serve(self._calls.set_quota, request, context)

    async def ListQuotas(  # noqa: N802
        self, request: pb.ListQuotasRequest, context: Context
    ) -> pb.ListQuotasResponse:
        return await self._edge.serve(self._calls.list_quotas, request, context)
