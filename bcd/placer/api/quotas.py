"""Quotas: seen by their tenants, set by administrators."""

from dataclasses import dataclass

from bcd.model.caller import Caller
from bcd.model.device import DeviceClass
from bcd.model.errors import InvalidInput
from bcd.model.texts import check_text
from bcd.placer.api.edge import Context, Edge, require_admin
from bcd.placer.api.paging import cut, page_of
from bcd.placer.api.pools import require_tenant
from bcd.store import quotas
from bcd.store.database import Database
from bcd.store.quotas import Quota
from bcd.wire.compute.v1 import admin_pb2 as pb
from bcd.wire.compute.v1 import admin_pb2_grpc

MAX_QUOTA = 1 << 40
RESOURCES = (*DeviceClass, "vcpu", "memoryGiB")


def check_limit(resource: str, limit: int, path: str = "") -> None:
    """Raises InvalidInput for a resource that nothing is charged to, or a limit out of bounds."""
    if not 0 <= limit <= MAX_QUOTA:
        raise InvalidInput(f"{path}limit", f"must be 0 to {MAX_QUOTA}")
    if resource not in RESOURCES:
        raise InvalidInput(f"{path}resource", f"must be one of {', '.join(RESOURCES)}")


@dataclass(frozen=True, slots=True)
class QuotaCalls:
    """Calls about quotas, for verified callers."""

    database: Database

    async def set_quota(self, caller: Caller, request: pb.SetQuotaRequest) -> pb.SetQuotaResponse:
        """Set a tenant's ceiling for a resource."""
        require_admin(caller)
        check_limit(request.resource, request.limit)
        quota = await self.database.write(
            quotas.set_ceiling,
            check_text("tenantId", request.tenant_id),
            request.resource,
            request.limit,
        )
        return pb.SetQuotaResponse(quota=_encode(quota))

    async def list_quotas(
        self, caller: Caller, request: pb.ListQuotasRequest
    ) -> pb.ListQuotasResponse:
        """A page of a tenant's quotas, by resource."""
        require_tenant(caller, request.tenant_id)
        cursor, limit = page_of(request)
        found = await self.database.read(quotas.page, request.tenant_id, cursor, limit + 1)
        shown, following = cut(found, limit, lambda quota: quota.resource)
        return pb.ListQuotasResponse(
            quotas=[_encode(quota) for quota in shown], next_cursor=following
        )


def _encode(quota: Quota) -> pb.Quota:
    return pb.Quota(
        tenant_id=quota.tenant_id,
        resource=quota.resource,
        limit=quota.ceiling,
        used=quota.used,
    )


class QuotasServicer(admin_pb2_grpc.QuotasServiceServicer):
    """The generated service's methods, each through the edge."""

    def __init__(self, edge: Edge, calls: QuotaCalls) -> None:
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
