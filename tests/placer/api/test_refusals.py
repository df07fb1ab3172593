"""Every refusal of the source text, through the API: its clause, its reason and its details.

``...`` in the details stands for any text that is not empty.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import EllipsisType
from typing import Any

import pytest
from google.protobuf import json_format

from bcd.model.errors import Reason
from bcd.model.units import MAX_DURATION_MS
from bcd.placer.settings import ApiSettings, PlacerSettings, PolicySettings
from bcd.store import extend_holds
from bcd.wire.compute.v1 import reservations_pb2 as pb
from bcd.wire.status import RemoteError
from tests.placer.api.conftest import HOUR_MS, Client, Site, creation
from tests.placer.world import TENANT, dgx

Details = Mapping[str, str | EllipsisType]
NOBODY = "rsv_" + "a" * 52
_DENY = """
@id("whoever") permit (principal, action, resource);
@id("no-large-ones") forbid (principal, action, resource) when { resource.gpus > 8 };
@id("no-long-ones") forbid (principal, action, resource) when { resource.durationHours > 72 };
@id("confirm:agents") forbid (principal, action, resource)
when { principal.delegated && resource.gpus > 2 }
unless { context.confirmation == "approved" };
"""


@dataclass
class Stand:
    """A placer with callers, and a reservation that waits, as it has no nodes."""

    site: Site
    alice: Client
    stranger: Client
    folder: Path
    made: dict[str, str] = field(default_factory=dict)

    async def waiting(self) -> str:
        """A pending reservation's id."""
        return (await self.alice.create("waiting")).id

    async def ahead(self) -> str:
        """The id of a reservation placed for tomorrow."""
        await self.site.world.add_node(dgx("a", 1))
        start = self.site.clock.read() + 24 * HOUR_MS
        made = await self.alice.create("ahead", start=start)
        assert made.state == "placed"
        return made.id

    async def call(self, name: str, **fields: Any) -> RemoteError:
        """The refusal of one of Alice's calls about the tenant."""
        return await self.of(self.alice, name, **fields)

    async def of(self, client: Client, name: str, **fields: Any) -> RemoteError:
        """The refusal of somebody's call."""
        request = getattr(pb, name + "Request")(**{"tenant_id": TENANT} | fields)
        return await client.refused(getattr(client.reservations, name), request)

    def load_policy(self) -> None:
        """A policy that caps at 8 GPUs."""
        (self.folder / "caps.cedar").write_text(_DENY)
        settings = PlacerSettings(
            database=self.site.placer._settings.database,
            state=self.folder,
            trust_domain="test.example",
            api=ApiSettings(listen="127.0.0.1:0"),
            policy=PolicySettings(folder=self.folder),
        )
        self.site.placer.reload(settings)


Ask = Callable[[Stand], Awaitable[RemoteError]]


def creating(key: str = "k", **changes: Any) -> Ask:
    """A create with these fields in place of the sound ones, as JSON names them."""

    async def ask(stand: Stand) -> RemoteError:
        request = creation(stand.alice.pool_id, key)
        for name in changes:
            request.ClearField(_snake(name))  # type: ignore[arg-type]
        json_format.ParseDict(changes, request)
        return await stand.alice.refused(stand.alice.reservations.CreateReservation, request)

    return ask


def _snake(name: str) -> str:
    return "".join("_" + c.lower() if c.isupper() else c for c in name)


def gpus(**entry: Any) -> Ask:
    """A create with one device entry of these fields."""
    return creating(devices=[{"class": "gpu", "count": 1} | entry])


async def another_request(stand: Stand) -> RemoteError:
    stand.made["reservationId"] = (await stand.alice.create("used")).id
    return await creating("used", duration="2h")(stand)


async def another_request_on_a_refused_key(stand: Stand) -> RemoteError:
    stand.load_policy()
    first = await gpus(count=9)(stand)
    stand.made["reservationId"] = first.details["reservationId"]
    return await gpus(count=10)(stand)


async def over_a_cap(stand: Stand) -> RemoteError:
    stand.load_policy()
    return await gpus(count=9)(stand)


async def refused_key(stand: Stand) -> RemoteError:
    await over_a_cap(stand)
    stand.site.placer.reload(stand.site.placer._settings)  # the policy without caps
    return await gpus(count=9)(stand)


async def over_the_quota(stand: Stand) -> RemoteError:
    await stand.waiting()
    return await gpus(count=16)(stand)


async def without_a_quota(stand: Stand) -> RemoteError:
    return await gpus(**{"class": "gpu.mig"})(stand)


async def for_another_tenant(stand: Stand) -> RemoteError:
    request = creation(stand.alice.pool_id)
    return await stand.stranger.refused(stand.stranger.reservations.CreateReservation, request)


async def in_anothers_pool(stand: Stand) -> RemoteError:
    stand.made["poolId"] = stand.alice.pool_id
    request = creation(stand.alice.pool_id, tenant_id="other")
    return await stand.stranger.refused(stand.stranger.reservations.CreateReservation, request)


async def in_no_pool(stand: Stand) -> RemoteError:
    stand.made["poolId"] = "pool_" + "0" * 26
    return await creating(poolId=stand.made["poolId"])(stand)


async def a_draft(stand: Stand) -> RemoteError:
    await over_the_quota(stand)
    rows = await stand.site.world.rows("SELECT id FROM reservations WHERE state = 'draft'")
    stand.made["reservationId"] = rows[0]["id"]
    return await stand.call("GetReservation", reservation_id=rows[0]["id"])


def anothers(name: str) -> Ask:
    """A call about a reservation of a tenant that the caller does not belong to."""

    async def ask(stand: Stand) -> RemoteError:
        stand.made["reservationId"] = await stand.waiting()
        fields = {"reservation_id": stand.made["reservationId"], "tenant_id": "other"}
        return await stand.of(stand.stranger, name, **fields)

    return ask


def nobodys(name: str) -> Ask:
    """A call about a reservation that there is not."""

    async def ask(stand: Stand) -> RemoteError:
        return await stand.call(name, reservation_id=NOBODY)

    return ask


async def cancelled_twice(stand: Stand) -> RemoteError:
    made = await stand.waiting()
    await stand.alice.call(
        stand.alice.reservations.CancelReservation,
        pb.CancelReservationRequest(tenant_id=TENANT, reservation_id=made),
    )
    return await stand.call("CancelReservation", reservation_id=made)


def never_leased(name: str) -> Ask:
    """A call about a placed reservation without a lease."""

    async def ask(stand: Stand) -> RemoteError:
        return await stand.call(name, reservation_id=await stand.ahead())

    return ask


def extending(**longer: Any) -> Ask:
    """An extend of a placed reservation, asked for with these fields."""

    async def ask(stand: Stand) -> RemoteError:
        fields = {"reservation_id": await stand.ahead(), "idempotency_key": "e"}
        return await stand.call("ExtendReservation", **(fields | longer))

    return ask


async def extend_in_flight(stand: Stand) -> RemoteError:
    stand.made["reservationId"] = made = await stand.ahead()
    hold = extend_holds.take
    assert await stand.site.world.database.write(hold, made, "somebody", HOUR_MS)  # type: ignore[arg-type]
    return await stand.call("ExtendReservation", reservation_id=made, idempotency_key="e", by="1h")


async def extended_over_a_cap(stand: Stand) -> RemoteError:
    stand.made["reservationId"] = made = await stand.ahead()
    stand.load_policy()
    return await stand.call(
        "ExtendReservation", reservation_id=made, idempotency_key="e", by="100h"
    )


async def waits_and_is_extended(stand: Stand) -> RemoteError:
    return await stand.call(
        "ExtendReservation",
        reservation_id=await stand.waiting(),
        idempotency_key="e",
        by="1h",
    )


async def by_an_agent(stand: Stand) -> RemoteError:
    stand.load_policy()
    agent = stand.site.client("alice", actor="agent")
    request = creation(stand.alice.pool_id, "agents", 3)
    return await agent.refused(agent.reservations.CreateReservation, request)


async def by_an_agent_again(stand: Stand) -> RemoteError:
    first = await by_an_agent(stand)
    stand.made |= {name: first.details[name] for name in ("confirmationId", "expiresAt")}
    return await by_an_agent(stand)


async def started_long_ago(stand: Stand) -> RemoteError:
    return await creating(start=stand.site.clock.read() - 24 * HOUR_MS)(stand)


async def ahead_without_end(stand: Stand) -> RemoteError:
    return await creating(start=stand.site.clock.read() + 11 * 365 * 24 * HOUR_MS)(stand)


def listing(**fields: Any) -> Ask:
    """A list asked for with these fields."""

    async def ask(stand: Stand) -> RemoteError:
        return await stand.call("ListReservations", **fields)

    return ask


async def listed_by_a_stranger(stand: Stand) -> RemoteError:
    return await stand.of(stand.stranger, "ListReservations")


async def unknown_in_binary(stand: Stand) -> RemoteError:
    request = creation(stand.alice.pool_id)
    request.devices[0].MergeFromString(b"\xba\x3e\x01x")  # field 999
    return await stand.alice.refused(stand.alice.reservations.CreateReservation, request)


async def nobody_calls(stand: Stand) -> RemoteError:
    return await stand.of(stand.site.bearer("no-token"), "ListReservations")


def _bad(clause: str, name: str, ask: Ask, path: str) -> tuple[str, str, Ask, Reason, Details]:
    return (clause, name, ask, Reason.INVALID_INPUT, {"field": path, "rule": ...})


_YEARS = f"{11 * 365}d"
_LONG = "x" * 257
_ID: Details = {"reservationId": ...}
INPUT = (
    _bad("1.2", "no-duration", creating(duration=""), "duration"),
    _bad("1.2", "zero", creating(duration="0"), "duration"),
    _bad("1.2", "negative", creating(duration="-1h"), "duration"),
    _bad("1.2", "fraction-of-a-millisecond", creating(duration="1.5ms"), "duration"),
    _bad("1.2", "no-unit-of-time", creating(duration="1y"), "duration"),
    _bad("1.2", "beyond-ten-years", creating(duration=_YEARS), "duration"),
    _bad("2.1", "no-tenant", creating(tenantId=""), "tenantId"),
    _bad("2.1", "no-key", creating(idempotencyKey=""), "idempotencyKey"),
    _bad("2.1", "no-devices", creating(devices=[]), "devices"),
    _bad("2.1", "no-class", creating(devices=[{"count": 1}]), "devices[0].class"),
    _bad("2.1", "no-count", creating(devices=[{"class": "gpu"}]), "devices[0].count"),
    _bad("2.1", "other-class", gpus(**{"class": "tpu"}), "devices[0].class"),
    _bad("2.1", "no-pool-id", creating(poolId="pool"), "poolId"),
    _bad("2.2", "unknown-field", unknown_in_binary, "devices[0].#999"),
    _bad("2.3", "other-topology", gpus(topology="ring"), "devices[0].topology"),
    _bad("2.4", "other-binding", creating(binding="vm"), "binding"),
    _bad("2.5", "count-0", gpus(count=0), "devices[0].count"),
    _bad("2.5", "count-1025", gpus(count=1025), "devices[0].count"),
    _bad("2.5", "nine-entries", creating(devices=[{"class": "gpu", "count": 1}] * 9), "devices"),
    _bad("2.5", "vcpu-4097", creating(resources={"vcpu": 4097}), "resources.vcpu"),
    _bad("2.5", "vcpu-negative", creating(resources={"vcpu": -1}), "resources.vcpu"),
    _bad("2.5", "memory-65537", creating(resources={"memoryGiB": 65537}), "resources.memoryGiB"),
    _bad(
        "2.5", "pages-65537", creating(resources={"hugepages1Gi": 65537}), "resources.hugepages1Gi"
    ),
    _bad("2.5", "gang-0", creating(gang={"size": 0}), "gang.size"),
    _bad("2.5", "gang-1025", creating(gang={"size": 1025}), "gang.size"),
    _bad("2.5", "33-labels", creating(labels={f"k{i}": "" for i in range(33)}), "labels"),
    _bad("2.5", "long-key", creating(idempotencyKey=_LONG), "idempotencyKey"),
    _bad("2.5", "long-label", creating(labels={_LONG: ""}), "labels"),
    _bad("14.1", "lease-0", creating(leaseSeconds=0), "leaseSeconds"),
    _bad("2.1", "start-long-past", started_long_ago, "start"),
    _bad("2.1", "start-out-of-reach", ahead_without_end, "start"),
    _bad("10.3", "kubernetes-without-its-policy", creating(binding="kubernetes"), "binding"),
    _bad("14.2", "neither-until-nor-by", extending(), "until"),
    _bad("14.2", "both-until-and-by", extending(until=1, by="1h"), "until"),
    _bad("14.2", "by-nothing", extending(by="0"), "by"),
    _bad("14.2", "no-key", extending(by="1h", idempotency_key=""), "idempotencyKey"),
    _bad("14.2", "beyond-ten-years", extending(by=f"{MAX_DURATION_MS}ms"), "by"),
    _bad("15.3", "scope", listing(scope="others"), "scope"),
    _bad("15.3", "limit-0", listing(limit=0), "limit"),
    _bad("15.3", "limit-201", listing(limit=201), "limit"),
    _bad("15.3", "state", listing(state="busy"), "state"),
    _bad("15.3", "cursor-of-no-form", listing(cursor="x"), "cursor"),
    _bad("15.3", "cursor-of-nobody", listing(cursor=NOBODY), "cursor"),
)
OTHERS: tuple[tuple[str, str, Ask, Reason, Details], ...] = (
    ("2.4", "instance", creating(binding="instance"), Reason.UNSUPPORTED, {"field": "binding"}),
    ("2.4", "node", creating(binding="node"), Reason.UNSUPPORTED, {"field": "binding"}),
    ("3.3", "other-request", another_request, Reason.CONFLICT, _ID),
    ("3.3", "on-refused-key", another_request_on_a_refused_key, Reason.CONFLICT, _ID),
    ("3.3", "refused-key", refused_key, Reason.ACCESS_DENIED, _ID),
    ("3.5", "draft", a_draft, Reason.NOT_FOUND, _ID),
    ("4.2", "over-a-cap", over_a_cap, Reason.ACCESS_DENIED, {"caps": "gpus", **_ID}),
    (
        "5.1", "over-the-quota", over_the_quota, Reason.QUOTA_EXCEEDED,
        {"resource": "gpu", "limit": "16", "used": "1", "asked": "16"},
    ),
    (
        "5.2", "without-a-quota", without_a_quota, Reason.QUOTA_EXCEEDED,
        {"resource": "gpu.mig", "limit": "0", "used": "0", "asked": "1"},
    ),
    (
        "13", "confirmation", by_an_agent, Reason.CONFIRMATION_REQUIRED,
        {"confirmationId": ..., "expiresAt": ..., **_ID},
    ),
    (
        "13", "the-same-confirmation", by_an_agent_again, Reason.CONFIRMATION_REQUIRED,
        {"confirmationId": ..., "expiresAt": ..., **_ID},
    ),
    (
        "14.1", "no-lease", never_leased("RenewReservation"), Reason.INVALID_STATE,
        {"state": "placed"},
    ),
    (
        "14.2", "waits", waits_and_is_extended, Reason.INVALID_STATE, {"state": "pending"},
    ),
    (
        "14.2", "extended-over-a-cap", extended_over_a_cap, Reason.ACCESS_DENIED,
        {"caps": "duration", **_ID},
    ),
    (
        "14.3", "extend-in-flight", extend_in_flight, Reason.CONFLICT,
        {"reason": "extend-in-flight", "retryAfterSeconds": "60", **_ID},
    ),
    ("14.4", "cancelled-twice", cancelled_twice, Reason.INVALID_STATE, {"state": "cancelled"}),
    ("15.4", "no-pool", in_no_pool, Reason.NOT_FOUND, {"poolId": ...}),
    ("15.4", "anothers-pool", in_anothers_pool, Reason.NOT_FOUND, {"poolId": ...}),
    ("15.4", "other-tenant", for_another_tenant, Reason.ACCESS_DENIED, {"tenantId": TENANT}),
    ("15.4", "list-others", listed_by_a_stranger, Reason.ACCESS_DENIED, {"tenantId": TENANT}),
    ("15.4", "nobody", nobody_calls, Reason.UNAUTHENTICATED, {}),
    *(
        ("15.4", f"{name}-{word}", kind(name), Reason.NOT_FOUND, _ID)
        for name in (
            "GetReservation", "ReleaseReservation", "CancelReservation", "RenewReservation",
        )
        for word, kind in (("anothers", anothers), ("nobodys", nobodys))
    ),
)  # fmt: skip
TABLE = INPUT + OTHERS


@pytest.fixture
def stand(site: Site, alice: Client, stranger: Client, tmp_path: Path) -> Stand:
    folder = tmp_path / "policies"
    folder.mkdir()
    return Stand(site, alice, stranger, folder)


@pytest.mark.parametrize(
    ("ask", "reason", "details"),
    [entry[2:] for entry in TABLE],
    ids=[f"{clause}-{name}" for clause, name, *_ in TABLE],
)
async def test_what_is_refused_says_why_and_about_what(
    stand: Stand, ask: Ask, reason: Reason, details: Details
) -> None:
    refused = await ask(stand)
    assert refused.told
    assert refused.reason is reason
    assert refused.message
    for name, value in details.items():
        found = refused.details[name]
        assert found if value is ... else found == value, (name, refused.details)
    for name, value in stand.made.items():
        assert refused.details[name] == value
