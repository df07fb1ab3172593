"""What a pool allows a reservation: asked at its create, and anew whenever it is to be placed.

Between the two the pool's policy, its offers and its devices may have changed. What is placed
already keeps what it has.
"""

from dataclasses import replace

from bcd.model.assignment import Binding
from bcd.model.device import DeviceClass
from bcd.model.errors import InvalidInput, NotFound
from bcd.model.pool import SharingMode, SharingPolicy
from bcd.model.reservation import Request
from bcd.placer.placement.demand import Demand, demand_of
from bcd.placer.placement.shape import admitted
from bcd.placer.placement.unschedulable import Unschedulable
from bcd.store import offers
from bcd.store.database import Transaction
from bcd.store.offers import Offer
from bcd.store.pools import Pool
from bcd.store.reservations import StoredReservation


def terms(tx: Transaction, pool: Pool, tenant_id: str, request: Request) -> Offer | None:
    """The offer that a request is made under, None for the pool's owner.

    Raises NotFound for a tenant that the pool is not offered to, and InvalidInput as ``refuse``
    does. Call under the pool's lock.
    """
    offer = offers.terms(tx, pool, tenant_id)
    refuse(pool, tenant_id, request)
    return offer


def refuse(pool: Pool, tenant_id: str, request: Request) -> None:
    """Raises InvalidInput for what no placement in this pool could hand over.

    The kubelet gives bound GPUs to any pod of its cluster: that is for the pool's owner only.
    """
    _refuse_slots(request, pool.policy.sharing)
    if request.binding is not Binding.KUBERNETES:
        return
    if not pool.policy.kubernetes:
        raise InvalidInput(
            "binding", f"kubernetes needs a pool whose policy allows it; {pool.id} has none"
        )
    if pool.tenant_id != tenant_id:
        raise InvalidInput("binding", "kubernetes is for the pool's owner alone; book a hold")


def _refuse_slots(request: Request, sharing: SharingPolicy) -> None:
    """Refuse slots of an MPS pool that no process could use together (spec 16.4).

    It speaks to one MPS daemon only, which has one GPU. Raises InvalidInput.
    """
    shared = any(ask.device_class is DeviceClass.SLOT for ask in request.devices)
    if not shared or sharing.mode is not SharingMode.MPS:
        return
    if len(request.devices) > 1:
        raise InvalidInput("devices", "slots shared by MPS are reserved without other devices")
    if request.devices[0].count > sharing.slots_per_gpu:
        raise InvalidInput(
            "devices[0].count",
            f"slots shared by MPS lie on one GPU, which has {sharing.slots_per_gpu}",
        )


def barred(tx: Transaction, pool: Pool, row: StoredReservation) -> Unschedulable | None:
    """Why the pool no longer allows what was admitted, None where it does."""
    try:
        terms(tx, pool, row.tenant_id, row.request)
    except NotFound:
        return _barred(
            "OfferWithdrawn",
            f"pool {pool.id} is no longer offered to {row.tenant_id}; it is placed once the pool"
            " is offered again, or release it",
        )
    except InvalidInput as rule:
        return _barred(
            "PolicyChanged",
            f"the pool's policy changed and does not allow it ({rule.message}); it is placed once"
            " the policy does again, or release it",
        )
    return None


def _barred(reason: str, words: str) -> Unschedulable:
    return Unschedulable(rejected={}, earliest_ms=None, reason=reason, barred=words)


def demand_in(pool: Pool, row: StoredReservation) -> Demand:
    """What a reservation asks of each of its nodes, and which devices it may be given.

    None of a model that the pool got after the admission, unless that saw every word of it or no
    model that matches.
    """
    demand = demand_of(row.request, row.resources, pool.policy.sharing.mode)
    if row.models is None or row.models.issuperset(pool.models):
        return demand
    return replace(demand, devices=tuple(admitted(ask, row.models) for ask in demand.devices))
