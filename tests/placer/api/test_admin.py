"""Pools, quotas, nodes and credentials: for administrators, and what tenants see of them."""

from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ed25519

from bcd.model.errors import Reason
from bcd.signing import keys
from bcd.signing.certificates import chain_problem, make_csr, spiffe_id
from bcd.store import certificates
from bcd.wire.compute.v1 import admin_pb2 as pb
from bcd.wire.compute.v1 import maintenance_pb2, offers_pb2, reservations_pb2
from tests.placer.api.conftest import Client, Site, is_refusal
from tests.placer.pki.test_enrolment import csr_of
from tests.placer.world import TENANT, dgx

MINUTE_MS = 60_000

ADMIN_ONLY: dict[str, tuple[str, str, Any]] = {
    "CreatePool": ("pools", "CreatePool", pb.CreatePoolRequest(name="x")),
    "SetQuota": ("quotas", "SetQuota", pb.SetQuotaRequest(tenant_id=TENANT, resource="gpu")),
    "CordonNode": ("nodes", "CordonNode", pb.CordonNodeRequest()),
    "RevokeNode": ("nodes", "RevokeNode", pb.RevokeNodeRequest()),
    "UpdatePool": ("pools", "UpdatePool", pb.UpdatePoolRequest()),
    "DeletePool": ("pools", "DeletePool", pb.DeletePoolRequest()),
    "DrainNode": ("nodes", "DrainNode", pb.DrainNodeRequest()),
    "TrustNode": ("nodes", "TrustNode", pb.TrustNodeRequest(trusted=True)),
    "LabelNode": ("nodes", "LabelNode", pb.LabelNodeRequest()),
    "RemoveNode": ("nodes", "RemoveNode", pb.RemoveNodeRequest()),
    "SetOffer": ("offers", "SetOffer", offers_pb2.SetOfferRequest()),
    "WithdrawOffer": ("offers", "WithdrawOffer", offers_pb2.WithdrawOfferRequest()),
    "AddMaintenance": ("maintenance", "AddMaintenance", maintenance_pb2.AddMaintenanceRequest()),
    "ListMaintenance": (
        "maintenance",
        "ListMaintenance",
        maintenance_pb2.ListMaintenanceRequest(),
    ),
    "RemoveMaintenance": (
        "maintenance",
        "RemoveMaintenance",
        maintenance_pb2.RemoveMaintenanceRequest(),
    ),
    "ListJoinTokens": ("credentials", "ListJoinTokens", pb.ListJoinTokensRequest()),
    "ExpireJoinToken": ("credentials", "ExpireJoinToken", pb.ExpireJoinTokenRequest()),
    "ListCertificates": ("credentials", "ListCertificates", pb.ListCertificatesRequest()),
    "RevokeCertificate": ("credentials", "RevokeCertificate", pb.RevokeCertificateRequest()),
    "IssueToken": ("credentials", "IssueToken", pb.IssueTokenRequest(subject="x", admin=True)),
    "CreateJoinToken": ("credentials", "CreateJoinToken", pb.CreateJoinTokenRequest()),
    "EnrollGateway": ("credentials", "EnrollGateway", pb.EnrollGatewayRequest()),
}


@pytest.mark.parametrize(("stub", "name", "request_"), ADMIN_ONLY.values(), ids=ADMIN_ONLY.keys())
async def test_what_administers_is_for_administrators(
    site: Site, alice: Client, stub: str, name: str, request_: Any
) -> None:
    refused = await alice.refused(getattr(getattr(alice, stub), name), request_)
    assert refused.reason is Reason.ACCESS_DENIED
    agent = site.client("root", tenants=(), admin=False, actor="root")
    assert (await agent.refused(getattr(getattr(agent, stub), name), request_)).reason is (
        Reason.ACCESS_DENIED
    )


# Pools and quotas


def pool(**changes: Any) -> pb.CreatePoolRequest:
    return pb.CreatePoolRequest(**{"name": "new", "tenant_id": TENANT, "region": "eu-2"} | changes)


async def test_a_pool_is_made_and_listed_to_its_tenant(
    site: Site, admin: Client, alice: Client, stranger: Client
) -> None:
    policy = pb.PoolPolicy(turnaround_ms=60_000)
    made = (await admin.call(admin.pools.CreatePool, pool(policy=policy))).pool
    assert (made.name, made.tenant_id, made.region) == ("new", TENANT, "eu-2")
    assert (made.policy.turnaround_ms, made.policy.placer) == (60_000, "inline")
    mine = pb.ListPoolsRequest(tenant_id=TENANT)
    assert [p.name for p in (await alice.call(alice.pools.ListPools, mine)).pools] == [
        "new",
        "pool",
    ]
    theirs = pb.ListPoolsRequest(tenant_id="other")
    assert list((await stranger.call(stranger.pools.ListPools, theirs)).pools) == []
    assert (await stranger.refused(stranger.pools.ListPools, mine)).reason is Reason.ACCESS_DENIED
    everything = (await admin.call(admin.pools.ListPools, pb.ListPoolsRequest())).pools
    assert len(everything) == 2
    nobody = pb.ListPoolsRequest()
    assert (await alice.refused(alice.pools.ListPools, nobody)).reason is Reason.ACCESS_DENIED


async def test_a_pool_counts_its_nodes_and_free_gpus(site: Site, alice: Client) -> None:
    await site.world.add_node(dgx("a"))
    await site.world.add_node(dgx("b"), trusted=False)
    await alice.create(count=3)
    (found,) = (
        await alice.call(alice.pools.ListPools, pb.ListPoolsRequest(tenant_id=TENANT))
    ).pools
    assert (found.nodes, found.nodes_schedulable, found.gpus, found.gpus_free) == (2, 1, 8, 5)


@pytest.mark.parametrize(
    ("changes", "reason", "field"),
    [
        ({"name": ""}, Reason.INVALID_INPUT, "name"),
        ({"name": "x" * 257}, Reason.INVALID_INPUT, "name"),
        ({"name": "a\nb"}, Reason.INVALID_INPUT, "name"),
        ({"tenant_id": ""}, Reason.INVALID_INPUT, "tenantId"),
        ({"region": ""}, Reason.INVALID_INPUT, "region"),
        ({"policy": pb.PoolPolicy(turnaround_ms=-1)}, Reason.INVALID_INPUT, "policy.turnaroundMs"),
        (
            {"policy": pb.PoolPolicy(turnaround_ms=86_400_001)},
            Reason.INVALID_INPUT,
            "policy.turnaroundMs",
        ),
        ({"policy": pb.PoolPolicy(placer="x")}, Reason.INVALID_INPUT, "policy.placer"),
        ({"policy": pb.PoolPolicy(tenant_root=True)}, Reason.UNSUPPORTED, "policy.tenantRoot"),
    ],
    ids=str,
)
async def test_a_pool_asked_for_wrongly_is_refused_by_its_field(
    site: Site, admin: Client, changes: dict[str, Any], reason: Reason, field: str
) -> None:
    refused = await admin.refused(admin.pools.CreatePool, pool(**changes))
    assert is_refusal(refused, reason, field=field)


async def test_a_pools_name_is_taken_once(site: Site, admin: Client) -> None:
    refused = await admin.refused(admin.pools.CreatePool, pool(name="pool"))
    assert is_refusal(refused, Reason.CONFLICT, name="pool")


async def test_quotas_are_set_and_seen_with_what_is_used(
    site: Site, admin: Client, alice: Client, stranger: Client
) -> None:
    await alice.create(count=3)
    request = pb.SetQuotaRequest(tenant_id=TENANT, resource="gpu", limit=2)
    quota = (await admin.call(admin.quotas.SetQuota, request)).quota
    assert (quota.limit, quota.used) == (2, 3)
    mine = pb.ListQuotasRequest(tenant_id=TENANT)
    (seen,) = (await alice.call(alice.quotas.ListQuotas, mine)).quotas
    assert seen == quota
    assert (await stranger.refused(stranger.quotas.ListQuotas, mine)).reason is (
        Reason.ACCESS_DENIED
    )
    refused = await alice.refused(
        alice.reservations.CreateReservation,
        reservations_pb2.CreateReservationRequest(
            tenant_id=TENANT,
            pool_id=alice.pool_id,
            duration="1h",
            idempotency_key="over",
            devices=[reservations_pb2.DeviceRequest(**{"class": "gpu"}, count=1)],
        ),
    )
    assert is_refusal(refused, Reason.QUOTA_EXCEEDED, limit="2", used="3", asked="1")


async def test_quotas_come_in_pages_by_resource(site: Site, admin: Client, alice: Client) -> None:
    await site.world.grant("vcpu", 8)
    request = pb.ListQuotasRequest(tenant_id=TENANT, limit=1)
    first = await alice.call(alice.quotas.ListQuotas, request)
    request.cursor = first.next_cursor
    last = await alice.call(alice.quotas.ListQuotas, request)
    resources = [quota.resource for quota in (*first.quotas, *last.quotas)]
    assert (resources, last.next_cursor) == (["gpu", "vcpu"], "")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"limit": -1}, "limit"),
        ({"limit": (1 << 40) + 1}, "limit"),
        ({"tenant_id": ""}, "tenantId"),
        ({"resource": ""}, "resource"),
        ({"resource": "x" * 300}, "resource"),
    ],
    ids=str,
)
async def test_a_quota_asked_for_wrongly_is_refused_by_its_field(
    site: Site, admin: Client, changes: dict[str, Any], field: str
) -> None:
    sound: dict[str, Any] = {"tenant_id": TENANT, "resource": "gpu", "limit": 1}
    request = pb.SetQuotaRequest(**sound | changes)
    refused = await admin.refused(admin.quotas.SetQuota, request)
    assert is_refusal(refused, Reason.INVALID_INPUT, field=field)


# Nodes


async def nodes_of(client: Client, **changes: Any) -> list[pb.Node]:
    request = pb.ListNodesRequest(**({"tenant_id": TENANT} | changes))
    return list((await client.call(client.nodes.ListNodes, request)).nodes)


async def test_a_tenant_sees_its_nodes_their_devices_and_who_holds_them(
    site: Site, alice: Client, stranger: Client, admin: Client
) -> None:
    node = await site.world.add_node(dgx("a", 2))
    made = await alice.create()
    (seen,) = await nodes_of(alice)
    assert (seen.id, seen.pool_id, seen.hostname) == (node.id, alice.pool_id, "host")
    assert (seen.connected, seen.ready, seen.schedulable, seen.cordoned) == (
        True,
        True,
        True,
        False,
    )
    assert seen.last_seen > 0
    assert [(d.id, d.reservation_id) for d in seen.devices] == [
        ("GPU-a-0", made.id),
        ("GPU-a-1", ""),
    ]
    assert await nodes_of(alice, pool_id=alice.pool_id) == [seen]
    assert await nodes_of(stranger, tenant_id="other") == []
    hidden = pb.ListNodesRequest(tenant_id="other", pool_id=alice.pool_id)
    refused = await stranger.refused(stranger.nodes.ListNodes, hidden)
    assert is_refusal(refused, Reason.NOT_FOUND, poolId=alice.pool_id)
    everything = (await admin.call(admin.nodes.ListNodes, pb.ListNodesRequest())).nodes
    assert [n.id for n in everything] == [node.id]


async def test_a_cordoned_node_keeps_its_bookings_and_takes_no_new_ones(
    site: Site, alice: Client, admin: Client
) -> None:
    node = await site.world.add_node(dgx("a"))
    kept = await alice.create("kept")
    request = pb.CordonNodeRequest(node_id=node.id, cordoned=True)
    answer = (await admin.call(admin.nodes.CordonNode, request)).node
    assert (answer.cordoned, answer.schedulable) == (True, False)
    waiting = await alice.create("waiting")
    assert waiting.state == "pending"
    assert "state rejected 1" in waiting.conditions[0].message
    assert await site.stored(kept.id) in ("placed", "binding")
    request.cordoned = False
    assert not (await admin.call(admin.nodes.CordonNode, request)).node.cordoned
    assert (await alice.create("next")).state == "placed"
    missing = pb.CordonNodeRequest(node_id="node_00000000000000000000000000")
    assert (await admin.refused(admin.nodes.CordonNode, missing)).reason is Reason.NOT_FOUND


async def test_revoking_a_node_revokes_all_its_certificates_once(site: Site, admin: Client) -> None:
    node = await site.world.add_node(dgx("a"))
    request = pb.RevokeNodeRequest(node_id=node.id)
    assert (await admin.call(admin.nodes.RevokeNode, request)).certificates == 1
    assert (await admin.call(admin.nodes.RevokeNode, request)).certificates == 0
    (record,) = await site.world.database.read(
        certificates.by_key, keys.key_id(node.key.public_key())
    )
    assert record.revoked
    listed = await admin.call(admin.nodes.ListNodes, pb.ListNodesRequest())
    assert [entry.schedulable for entry in listed.nodes if entry.id == node.id] == [False]
    missing = pb.RevokeNodeRequest(node_id="node_00000000000000000000000000")
    assert (await admin.refused(admin.nodes.RevokeNode, missing)).reason is Reason.NOT_FOUND


# Credentials


async def test_an_issued_token_works_for_whom_it_was_made(site: Site, admin: Client) -> None:
    request = pb.IssueTokenRequest(subject="carol", tenants=[TENANT], lifetime_ms=MINUTE_MS)
    answer = await admin.call(admin.credentials.IssueToken, request)
    carol = site.bearer(answer.token)
    assert (await carol.create()).owner_identity_id.endswith("|carol")
    assert (await carol.refused(carol.credentials.IssueToken, request)).reason is (
        Reason.ACCESS_DENIED
    )
    assert 0 < answer.expires - site.clock.read() <= MINUTE_MS


async def test_a_token_for_an_agent_makes_what_is_the_persons(site: Site, admin: Client) -> None:
    request = pb.IssueTokenRequest(subject="carol", actor="agent-7", tenants=[TENANT])
    answer = await admin.call(admin.credentials.IssueToken, request)
    caller = site.issuer.caller_of(answer.token)
    assert (caller.subject, caller.actor, caller.admin) == ("carol", "agent-7", False)
    made = await site.bearer(answer.token).create()
    assert made.owner_identity_id.endswith("|carol")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"subject": ""}, "subject"),
        ({"actor": "a\nb"}, "actor"),
        ({"actor": "agent", "admin": True}, "actor"),
        ({"tenants": [""]}, "tenants[0]"),
        ({"tenants": ["x"] * 65}, "tenants"),
        ({"groups": ["ok", "a\nb"]}, "groups[1]"),
        ({"tenants": ["x" * 200] * 64}, "tenants"),
        ({"lifetime_ms": -1}, "lifetimeMs"),
        ({"lifetime_ms": 1}, "lifetimeMs"),
        ({"lifetime_ms": 1 << 60}, "lifetimeMs"),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_a_token_asked_for_wrongly_is_refused_by_its_field(
    site: Site, admin: Client, changes: dict[str, Any], field: str
) -> None:
    request = pb.IssueTokenRequest(**{"subject": "x"} | changes)
    refused = await admin.refused(admin.credentials.IssueToken, request)
    assert is_refusal(refused, Reason.INVALID_INPUT, field=field)


async def test_a_join_token_is_handed_out_for_a_new_node(site: Site, admin: Client) -> None:
    request = pb.CreateJoinTokenRequest(pool_id=site.world.pool_id)
    answer = await admin.call(admin.credentials.CreateJoinToken, request)
    assert answer.token.endswith(site.world.authority.pin)
    assert answer.node_id.startswith("node_")
    assert 14 * MINUTE_MS < answer.expires - site.clock.read() <= 15 * MINUTE_MS
    long = pb.CreateJoinTokenRequest(pool_id=site.world.pool_id, lifetime_ms=61 * MINUTE_MS)
    refused = await admin.refused(admin.credentials.CreateJoinToken, long)
    assert is_refusal(refused, Reason.INVALID_INPUT, field="lifetimeMs")


async def test_a_gateway_gets_a_certificate_for_its_names(site: Site, admin: Client) -> None:
    key = keys.generate_key()
    request = pb.EnrollGatewayRequest(
        gateway_id="gw-1", csr=make_csr(key), names=["gw.example", "10.0.0.7", "fd00::1", "::1"]
    )
    answer = await admin.call(admin.credentials.EnrollGateway, request)
    leaf = x509.load_der_x509_certificate(answer.chain[0])
    subject = spiffe_id(leaf)
    assert subject is not None
    assert (subject.role, subject.id) == ("gateway", "gw-1")
    bundle = [x509.load_der_x509_certificate(der) for der in answer.bundle]
    assert chain_problem(leaf, bundle, site.clock.read()) is None


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"gateway_id": ""}, "gatewayId"),
        ({"gateway_id": "../gw"}, "gatewayId"),
        ({"names": []}, "names"),
        ({"names": ["x"] * 17}, "names"),
        ({"names": ["*.example"]}, "names"),
        ({"names": ["a b"]}, "names"),
        ({"names": ["https://x"]}, "names"),
        ({"names": [""]}, "names"),
        ({"names": ["a:b"]}, "names"),
        ({"names": ["a..b"]}, "names"),
        ({"names": ["fe80::1%eth0"]}, "names"),
        ({"names": [".".join(["x" * 60] * 5)]}, "names"),
        ({"csr": b""}, "csr"),
        ({"csr": b"\xff" * 99}, "csr"),
    ],
    ids=str,
)
async def test_a_gateway_enrolled_wrongly_is_refused_by_its_field(
    site: Site, admin: Client, changes: dict[str, Any], field: str
) -> None:
    plain = {"gateway_id": "gw", "csr": make_csr(keys.generate_key()), "names": ["gw.example"]}
    refused = await admin.refused(
        admin.credentials.EnrollGateway, pb.EnrollGatewayRequest(**plain | changes)
    )
    assert is_refusal(refused, Reason.INVALID_INPUT, field=field)


async def test_a_gateway_needs_a_key_of_the_one_kind(site: Site, admin: Client) -> None:
    csr = csr_of(ed25519.Ed25519PrivateKey.generate())
    request = pb.EnrollGatewayRequest(gateway_id="gw", csr=csr, names=["gw.example"])
    refused = await admin.refused(admin.credentials.EnrollGateway, request)
    assert is_refusal(refused, Reason.INVALID_INPUT, field="csr")
