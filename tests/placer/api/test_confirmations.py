"""The person's service: his confirmations, decided with his own token, unknown to others."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from bcd.cli.better_compute import main
from bcd.model.errors import Reason
from bcd.placer.pki.state import load_state
from bcd.placer.server import Placer
from bcd.placer.settings import ConfirmationSettings, PlacerSettings, PolicySettings
from bcd.store.database import Database
from bcd.wire.compute.v1 import confirmations_pb2 as pb
from bcd.wire.compute.v1 import reservations_pb2
from bcd.wire.status import RemoteError
from tests.clock import DatabaseClock
from tests.placer.admission.test_policy import CONFIRM
from tests.placer.api.conftest import Client, Site, creation, is_refusal, settings_of
from tests.placer.world import DOMAIN, TENANT, World, dgx

LIFETIME_MS = 600_000


def settings(database_url: str, state: Path, policies: Path) -> PlacerSettings:
    policies.mkdir()
    (policies / "caps.cedar").write_text(CONFIRM)
    plain = settings_of(database_url, state)
    return PlacerSettings(
        database=plain.database,
        state=plain.state,
        trust_domain=plain.trust_domain,
        api=plain.api,
        policy=PolicySettings(folder=policies),
        confirmation=ConfirmationSettings(lifetime_ms=LIFETIME_MS),
    )


@pytest.fixture
async def site(
    database: Database, database_url: str, clock: DatabaseClock, state: Path, tmp_path: Path
) -> AsyncIterator[Site]:
    """A placer whose policy holds agents' larger requests back, with one node."""
    made = settings(database_url, state, tmp_path / "policies")
    secrets = load_state(state, DOMAIN)
    world = World(database, secrets.authority)
    await world.add_pool()
    await world.grant("gpu", 1000)
    await world.add_node(dgx("a"))
    placer = Placer(made, database, secrets)
    await placer.start()
    running = Site(placer, secrets.issuer, world, (state / "ca.pem").read_bytes(), clock)
    yield running
    for channel in running.channels:
        await channel.close()
    await placer.stop()


@pytest.fixture
def agent(site: Site) -> Client:
    """What acts for alice."""
    return site.client("alice", actor="agent-7")


async def held_back(agent: Client, key: str = "k", count: int = 4) -> RemoteError:
    message = creation(agent.pool_id, key, count)
    return await agent.refused(agent.reservations.CreateReservation, message)


async def listed(client: Client, **wanted: object) -> pb.ListConfirmationsResponse:
    request = pb.ListConfirmationsRequest(**{"tenant_id": TENANT} | wanted)  # type: ignore[arg-type]
    answer: pb.ListConfirmationsResponse = await client.call(
        client.confirmations.ListConfirmations, request
    )
    return answer


def approval(confirmation_id: str) -> pb.ApproveConfirmationRequest:
    return pb.ApproveConfirmationRequest(tenant_id=TENANT, confirmation_id=confirmation_id)


async def test_a_person_sees_what_he_is_asked_approves_it_and_the_agent_gets_it(
    site: Site, alice: Client, agent: Client
) -> None:
    refused = await held_back(agent)
    assert refused.reason is Reason.CONFIRMATION_REQUIRED
    (waiting,) = (await listed(alice, state="waiting")).confirmations
    assert waiting.id == refused.details["confirmationId"]
    assert str(waiting.expires) == refused.details["expiresAt"]
    assert waiting.expires - waiting.created == LIFETIME_MS
    assert (waiting.state, waiting.actor) == ("waiting", "agent-7")
    assert waiting.reservation_id == refused.details["reservationId"]
    assert waiting.request.pool_id == agent.pool_id
    assert waiting.request.devices[0].count == 4
    assert not waiting.HasField("decided")
    decided = await alice.call(alice.confirmations.ApproveConfirmation, approval(waiting.id))
    assert decided.confirmation.state == "approved"
    made = await agent.create(count=4)
    assert (made.id, made.state) == (waiting.reservation_id, "placed")
    assert made.owner_identity_id == waiting.owner_identity_id
    request = pb.GetConfirmationRequest(tenant_id=TENANT, confirmation_id=waiting.id)
    used = (await alice.call(alice.confirmations.GetConfirmation, request)).confirmation
    assert used.state == "used"
    assert used.HasField("decided")
    assert (await listed(alice, state="waiting")).confirmations == []


async def test_what_was_confirmed_may_be_renewed_by_the_agent_and_not_extended(
    site: Site, alice: Client, agent: Client
) -> None:
    wanted = creation(agent.pool_id, "k", 4, lease_seconds=600)
    refused = await agent.refused(agent.reservations.CreateReservation, wanted)
    await alice.call(
        alice.confirmations.ApproveConfirmation, approval(refused.details["confirmationId"])
    )
    made = (await agent.call(agent.reservations.CreateReservation, wanted)).reservation
    one = {"tenant_id": TENANT, "reservation_id": made.id}
    renewal = reservations_pb2.RenewReservationRequest(**one)
    renewed = (await agent.call(agent.reservations.RenewReservation, renewal)).reservation
    assert renewed.lease_until >= made.lease_until
    longer = reservations_pb2.ExtendReservationRequest(**one, by="1h", idempotency_key="x")
    kept = await agent.refused(agent.reservations.ExtendReservation, longer)
    assert is_refusal(kept, Reason.ACCESS_DENIED, reservationId=made.id)
    another = site.client("alice", actor="agent-8")
    refused = await another.refused(another.reservations.RenewReservation, renewal)
    assert is_refusal(refused, Reason.ACCESS_DENIED, reservationId=made.id)
    assert (await alice.call(alice.reservations.ExtendReservation, longer)).extended
    refused = await agent.refused(agent.reservations.RenewReservation, renewal)
    assert is_refusal(refused, Reason.ACCESS_DENIED, reservationId=made.id)


async def test_a_rejected_request_is_refused(site: Site, alice: Client, agent: Client) -> None:
    refused = await held_back(agent)
    request = pb.RejectConfirmationRequest(
        tenant_id=TENANT, confirmation_id=refused.details["confirmationId"]
    )
    answer = await alice.call(alice.confirmations.RejectConfirmation, request)
    assert answer.confirmation.state == "rejected"
    assert (await held_back(agent)).reason is Reason.ACCESS_DENIED
    late = await alice.refused(
        alice.confirmations.ApproveConfirmation, approval(request.confirmation_id)
    )
    assert is_refusal(late, Reason.INVALID_STATE, state="rejected")


async def test_nobody_but_the_person_himself_knows_of_a_confirmation(
    site: Site, agent: Client, stranger: Client, admin: Client
) -> None:
    """Not the agent, with the same subject; no colleague, no administrator, no other tenant."""
    confirmation_id = (await held_back(agent)).details["confirmationId"]
    others = {
        "the agent": agent,
        "another agent of hers": site.client("alice", actor="agent-8"),
        "a colleague": site.client("bob"),
        "an administrator": admin,
        "a stranger": stranger,
        "herself in another tenant": site.client("alice", tenants=("other",)),
    }
    for name, client in others.items():
        stub = client.confirmations
        for method, message in (
            (stub.GetConfirmation, pb.GetConfirmationRequest),
            (stub.ApproveConfirmation, pb.ApproveConfirmationRequest),
            (stub.RejectConfirmation, pb.RejectConfirmationRequest),
        ):
            for tenant in (TENANT, "other"):
                request = message(tenant_id=tenant, confirmation_id=confirmation_id)
                refused = await client.refused(method, request)
                assert refused.reason is Reason.NOT_FOUND, name
            missing = message(tenant_id=TENANT, confirmation_id="conf_01m8n0t8p7f4tbyxcbfg4hs0hr")
            unknown = await client.refused(method, missing)
            assert unknown.message.replace(missing.confirmation_id, "") == (
                refused.message.replace(confirmation_id, "")
            )
        assert not (await listed(client)).confirmations, name
    assert (await held_back(agent)).details["confirmationId"] == confirmation_id


async def test_the_list_pages_newest_first(site: Site, alice: Client, agent: Client) -> None:
    ids = [(await held_back(agent, f"k{i}")).details["confirmationId"] for i in range(5)]
    await alice.call(alice.confirmations.ApproveConfirmation, approval(ids[1]))
    first = await listed(alice, limit=2)
    assert [c.id for c in first.confirmations] == [ids[4], ids[3]]
    second = await listed(alice, limit=2, cursor=first.next_cursor)
    assert [c.id for c in second.confirmations] == [ids[2], ids[1]]
    last = await listed(alice, limit=2, cursor=second.next_cursor)
    assert ([c.id for c in last.confirmations], last.next_cursor) == ([ids[0]], "")
    assert [c.id for c in (await listed(alice, state="approved")).confirmations] == [ids[1]]


@pytest.mark.parametrize(
    ("wanted", "field"),
    [
        ({"limit": 0}, "limit"),
        ({"limit": 201}, "limit"),
        ({"state": "open"}, "state"),
        ({"cursor": "x"}, "cursor"),
        ({"cursor": "conf_01m8n0t8p7f4tbyxcbfg4hs0hr"}, "cursor"),
    ],
)
async def test_a_list_asked_for_wrongly_is_refused_by_its_field(
    site: Site, alice: Client, wanted: dict[str, object], field: str
) -> None:
    request = pb.ListConfirmationsRequest(tenant_id=TENANT, **wanted)  # type: ignore[arg-type]
    refused = await alice.refused(alice.confirmations.ListConfirmations, request)
    assert is_refusal(refused, Reason.INVALID_INPUT, field=field)


async def test_the_person_and_the_agent_see_the_reservation_that_waits(
    site: Site, alice: Client, agent: Client
) -> None:
    refused = await held_back(agent)
    request = reservations_pb2.GetReservationRequest(
        tenant_id=TENANT, reservation_id=refused.details["reservationId"]
    )
    for client in (alice, agent):
        made = (await client.call(client.reservations.GetReservation, request)).reservation
        assert made.state == "awaiting-confirmation"
        assert refused.details["confirmationId"] in made.conditions[0].message


async def test_the_placer_itself_ends_one_that_nobody_answers(
    site: Site, agent: Client, clock: DatabaseClock
) -> None:
    """Its work queue wakes it at the deadline."""
    reservation_id = (await held_back(agent)).details["reservationId"]
    changed = asyncio.Event()
    stop = site.world.database.wakes.listen("reservation", lambda _key: changed.set())
    clock.advance(LIFETIME_MS)
    async with asyncio.timeout(20):
        while await site.stored(reservation_id) != "expired":
            await changed.wait()
            changed.clear()
    stop()
    assert await site.told(reservation_id) == [
        "reservation.awaiting-confirmation",
        "reservation.expired",
    ]
    assert (await agent.create(count=4)).state == "expired"


# The command


@dataclass(frozen=True, slots=True)
class Shell:
    """Runs better-compute with somebody's token."""

    config: Path

    async def run(self, *arguments: str) -> Result:
        command = [*arguments, "--config", str(self.config)]
        return await asyncio.to_thread(CliRunner().invoke, main, command)


def shell(site: Site, folder: Path, state: Path, name: str, **grant: Any) -> Shell:
    (folder / f"{name}.token").write_text(site.token("alice", **grant))
    values = {
        "api": f"localhost:{site.placer.port}",
        "ca_file": str(state / "ca.pem"),
        "token_file": str(folder / f"{name}.token"),
        "tenant": TENANT,
    }
    config = folder / f"{name}.toml"
    config.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items()))
    return Shell(config)


async def test_the_commands_of_an_agent_and_its_person_say_what_to_type_next(
    site: Site, tmp_path: Path, state: Path
) -> None:
    agent = shell(site, tmp_path, state, "agent", actor="agent-7")
    person = shell(site, tmp_path, state, "person")
    reserve = ("reserve", "--gpus", "4", "--for", "1h", "--wait", "0", "--key", "k")
    held = await agent.run(*reserve)
    assert held.exit_code == 3
    assert "alice must confirm what agent-7 asks for" in held.stderr
    assert "--key k" in held.stderr
    told = held.stderr.partition("better-compute confirm approve ")[2].partition(",")[0]
    as_json = await agent.run(*reserve, "-o", "json")
    assert as_json.exit_code == 3
    assert json.loads(as_json.stdout)["confirmationId"] == told
    listed = await person.run("confirm", "list")
    for words in (told, "waiting", "agent-7", "4 gpu", "1h", "confirm:large"):
        assert words in listed.stdout
    assert told not in (await agent.run("confirm", "list")).stdout
    refused = await agent.run("confirm", "approve", told)
    assert (refused.exit_code, "there is no confirmation" in refused.stderr) == (1, True)
    approved = await person.run("confirm", "approve", told)
    assert (approved.exit_code, approved.stdout) == (0, f"{told}  approved\n")
    assert "agent-7 must ask again before" in approved.stderr
    assert (await agent.run(*reserve)).exit_code == 0
    late = await person.run("confirm", "reject", told)
    assert (late.exit_code, "is used" in late.stderr) == (1, True)
    assert told not in (await person.run("confirm", "list")).stdout
    (shown,) = json.loads((await person.run("confirm", "list", "--all", "-o", "json")).stdout)
    assert (shown["id"], shown["state"]) == (told, "used")


async def test_a_rejected_request_exits_as_a_refusal(
    site: Site, tmp_path: Path, state: Path
) -> None:
    agent = shell(site, tmp_path, state, "agent", actor="agent-7")
    person = shell(site, tmp_path, state, "person")
    reserve = ("reserve", "--gpus", "4", "--for", "1h", "--wait", "0", "--key", "k")
    await agent.run(*reserve)
    (waiting,) = json.loads((await person.run("confirm", "list", "-o", "json")).stdout)
    rejected = await person.run("confirm", "reject", waiting["id"])
    assert (rejected.exit_code, rejected.stdout) == (0, f"{waiting['id']}  rejected\n")
    refused = await agent.run(*reserve)
    assert (refused.exit_code, "alice rejected it" in refused.stderr) == (1, True)
