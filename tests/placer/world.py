"""A control plane without network: database, CA, pool, quota, and nodes that sign reports.

Nodes arrive as real ones do: by a recorded certificate, a session and a stored inventory frame.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
from cryptography.hazmat.primitives.asymmetric import ec

from bcd.model.assignment import Binding, DesiredState, slice_name
from bcd.model.caller import Caller
from bcd.model.device import Device, DeviceClass
from bcd.model.host import HostFacts, HugePagePool, Inventory, NumaNode
from bcd.model.ids import NodeId, PoolId, ReservationId
from bcd.model.pool import PoolPolicy
from bcd.model.report import Bound, Outcome, Report
from bcd.model.reservation import TERMINAL, Reservation
from bcd.placer.admission.create import Admission
from bcd.placer.admission.extend import Extension, Extensions, Longer
from bcd.placer.admission.policy import Allowed, Decision, Policy
from bcd.placer.api.reservations import ReservationCalls
from bcd.placer.capacity.inventory import apply_inventory
from bcd.placer.capacity.reachability import judge
from bcd.placer.lifecycle import apply
from bcd.placer.lifecycle.apply import Hand
from bcd.placer.lifecycle.reconcile import Reconciler
from bcd.placer.lifecycle.transitions import Trigger
from bcd.placer.lifecycle.worker import Worker
from bcd.placer.pki.authority import Authority
from bcd.placer.pki.command import CommandSigner, Signed
from bcd.placer.placement.booking import Placements
from bcd.signing.certificates import Role, issue_ca
from bcd.signing.envelope import PayloadType, seal
from bcd.signing.keyfile import Credentials
from bcd.signing.keys import generate_key
from bcd.store import (
    allocations,
    certificates,
    desired_states,
    events,
    inventories,
    nodes,
    pools,
    quotas,
    reports,
    reservations,
    sessions,
)
from bcd.store.allocations import Allocation
from bcd.store.database import Database, Row, Transaction
from bcd.store.events import Event
from bcd.store.reports import Received
from bcd.store.sessions import Opening
from bcd.wire.desired import decode_desired
from bcd.wire.inventory import encode_inventory
from bcd.wire.node.v1 import desired_pb2, envelope_pb2
from bcd.wire.report import encode_report

TENANT = "acme"
DOMAIN = "test.example"
DAY_MS = 86_400_000
CAPABILITIES = ("attested-reports", "devices.limits")
ALICE = Caller(issuer="https://issuer", subject="alice", tenants=frozenset({TENANT}))
BOB = Caller(issuer="https://issuer", subject="bob", tenants=frozenset({TENANT}))


class AllowAll:
    """A policy that counts how often it is asked, and answers as it is told."""

    def __init__(self) -> None:
        self.asked = 0
        self.answer: Decision = Allowed()

    def decide(self, *_question: object) -> Decision:
        self.asked += 1
        return self.answer


def gpu(
    uuid: str,
    numa: int | None = 0,
    *,
    domain: str = "",
    peers: Sequence[str] = (),
    model: str = "NVIDIA H100 80GB HBM3",
) -> Device:
    """A healthy whole GPU."""
    return Device(
        id=uuid,
        device_class=DeviceClass.GPU,
        model=model,
        memory_bytes=80 << 30,
        pci_address="0000:1b:00.0",
        numa_node=numa,
        gpu=uuid,
        nvlink_domain=domain,
        nvlink_peers=tuple(peers),
    )


def mig(uuid: str, parent: str, profile: str = "1g.10gb", numa: int | None = 0) -> Device:
    """A healthy MIG instance."""
    return replace(gpu(uuid, numa), device_class=DeviceClass.MIG, gpu=parent, profile=profile)


def dgx(name: str, gpus: int = 8) -> tuple[Device, ...]:
    """GPUs of one NVSwitch fabric, half of them on each of two NUMA nodes."""
    return tuple(
        gpu(f"GPU-{name}-{i}", 0 if i < gpus // 2 else 1, domain=f"switch-{name}")
        for i in range(gpus)
    )


def host_of(
    cpus: int = 64, memory_gib: int = 1024, *, pages: Sequence[HugePagePool] = ()
) -> HostFacts:
    """A host of two NUMA nodes, each with half of the CPUs and memory, and with these pages."""
    half = cpus // 2
    return HostFacts(
        hostname="host",
        boot_id="boot",
        kernel="6.1",
        driver_version="580.1",
        cuda_version="13.0",
        online_cpus=frozenset(range(cpus)),
        isolated_cpus=frozenset(),
        memory_bytes=memory_gib << 30,
        numa_nodes=(
            NumaNode(0, frozenset(range(half)), memory_gib << 29, tuple(pages)),
            NumaNode(1, frozenset(range(half, cpus)), memory_gib << 29, tuple(pages)),
        ),
    )


def inventory_of(
    devices: Sequence[Device], hostname: str = "host", host: HostFacts | None = None
) -> Inventory:
    """An inventory of these devices in a host that does not matter."""
    return Inventory(host or replace(host_of(), hostname=hostname), tuple(devices))


class CheckingSigner(CommandSigner):
    """Signs as the placer does, and never a state that hands one device out twice."""

    def sign(self, state: DesiredState) -> Signed:
        """Check and sign."""
        handed = [device for entry in state.assignments for device in entry.devices]
        assert len(set(handed)) == len(handed), state
        return super().sign(state)


@dataclass
class FakeNode:
    """A node as the control plane sees it: a key, a session, and reports with growing numbers."""

    id: NodeId
    key: ec.EllipticCurvePrivateKey
    epoch: int = 1
    number: int = 0
    devices: tuple[Device, ...] = ()

    def report(self, allocation: Allocation, outcome: Outcome | None = None) -> Report:
        """The next report, by default that the allocation is bound as booked."""
        self.number += 1
        return Report(
            node_id=self.id,
            number=self.number,
            boot_id="boot",
            allocation_id=allocation.id,
            signed_at_ms=0,
            outcome=outcome or bound(allocation),
        )

    def seal(self, report: Report) -> envelope_pb2.Envelope:
        """The report signed with the node's key."""
        return seal(self.key, PayloadType.ATTESTED_REPORT, encode_report(report))


def bound(allocation: Allocation) -> Bound:
    """What an honest node reports of a hold that stands."""
    names = tuple(device.cdi_name for device in allocation.devices)
    limited = allocation.limits is not None and allocation.binding is Binding.HOLD
    return Bound(
        names,
        f"/run/bcd/allocations/{allocation.id}.env",
        slice_name(allocation.id) if limited else "",
    )


@dataclass
class World:
    """Everything of a control plane but its network."""

    database: Database
    authority: Authority
    pool_id: PoolId = field(default_factory=lambda: PoolId(""))
    policy: AllowAll = field(default_factory=AllowAll)
    placements: Placements = field(default_factory=Placements)
    nodes: list[FakeNode] = field(default_factory=list)

    def __post_init__(self) -> None:
        now_ms = 1_700_000_000_000
        credentials, _ = self.authority.credentials_for((Role.COMMAND, "placer"), now_ms)
        self.signer = CheckingSigner(credentials)
        self.worker = Worker(self.database, Reconciler(self.placements, self.signer))
        self.admission = self.admission_with(self.policy)
        self.extensions = Extensions(self.database, self.policy, self.placements, self.signer)
        self.calls = ReservationCalls(
            self.database, self.admission, self.extensions, self.policy, self.signer
        )

    def admission_with(self, policy: Policy) -> Admission:
        """The create path under another policy."""
        return Admission(self.database, policy, self.placements, self.signer)

    async def add_pool(self, name: str = "pool", policy: PoolPolicy | None = None) -> PoolId:
        """A pool of TENANT; the first one is the world's default."""
        pool = await self.database.write(pools.create, name, TENANT, "eu-1", policy or PoolPolicy())
        self.pool_id = self.pool_id or pool.id
        return pool.id

    async def set_policy(self, **policy: Any) -> None:
        """Give every pool this policy, as an administrator's change leaves it."""
        wanted = msgspec.json.encode(msgspec.convert(policy, PoolPolicy)).decode()
        statement = "UPDATE pools SET policy = :policy, left_queued = 1"
        await self.database.write(lambda tx: tx.run(statement, policy=wanted))

    async def grant(self, resource: str, ceiling: int, tenant: str = TENANT) -> None:
        """Set a quota."""
        await self.database.write(quotas.set_ceiling, tenant, resource, ceiling)

    async def add_node(
        self,
        devices: Sequence[Device],
        pool_id: PoolId | None = None,
        *,
        trusted: bool = True,
        host: HostFacts | None = None,
    ) -> FakeNode:
        """A node that joined, connected and sent its inventory, all applied."""
        node = await self.enrol(pool_id, trusted=trusted)
        await self.connect(node)
        await self.send_inventory(node, devices, host)
        return node

    async def enrol(self, pool_id: PoolId | None = None, *, trusted: bool = True) -> FakeNode:
        """A node that joined, and did no more than that."""
        key = generate_key()

        def join(tx: Transaction) -> NodeId:
            node_id = NodeId(tx.new_id("node"))
            nodes.enrol(tx, node_id, pool_id or self.pool_id, "node", trusted=trusted)
            issued = self.authority.issue((Role.NODE, node_id), key.public_key(), tx.now_ms())
            certificates.record(tx, issued.row)
            return node_id

        node = FakeNode(await self.database.write(join), key)
        self.nodes.append(node)
        return node

    async def connect(self, node: FakeNode) -> None:
        """Open a session, and let the placer see it."""
        await self.open_session(node)
        await self.judge_reachability(node)

    async def open_session(self, node: FakeNode) -> None:
        """Open a session as the gateway does; nobody has looked at it yet."""
        opening = Opening(
            node_id=node.id,
            gateway_id="gw",
            process_instance="p",
            boot_id="boot",
            daemon_version="0",
            protocol_version=1,
            ttl_ms=30_000,
        )
        node.epoch = await self.database.write(sessions.open_session, opening)
        await self.database.write(nodes.replace_capabilities, node.id, CAPABILITIES)

    async def judge_reachability(self, node: FakeNode) -> None:
        """Let the placer look at the node's session."""
        await self.database.write(judge, node.id)

    async def send_inventory(
        self, node: FakeNode, devices: Sequence[Device], host: HostFacts | None = None
    ) -> None:
        """Store an inventory as the gateway would, and apply it."""
        await self.store_inventory(node, devices, host)
        await self.database.write(apply_inventory, node.id)

    async def store_inventory(
        self, node: FakeNode, devices: Sequence[Device], host: HostFacts | None = None
    ) -> None:
        """Store an inventory as the gateway would; nobody has looked at it yet."""
        node.devices = tuple(devices)
        message = encode_inventory(inventory_of(devices, host=host))
        body = message.SerializeToString()
        stored = await self.database.write(
            inventories.store, node.id, node.epoch, message.hash, body
        )
        assert stored

    async def create(
        self, count: int = 1, *, key: str = "k", caller: Caller = ALICE, **changes: Any
    ) -> Reservation:
        """Reserve GPUs for an hour."""
        document = self.document(count, key, **changes)
        _, reservation = await self.admission.create(caller, document)
        return reservation

    def document(self, count: int = 1, key: str = "k", **changes: object) -> dict[str, object]:
        """A create's document; ``topology`` goes into its device entry."""
        device: dict[str, object] = {"class": "gpu", "count": count}
        for name in ("topology", "model", "profile"):
            if name in changes:
                device[name] = changes.pop(name)
        return {
            "tenantId": TENANT,
            "poolId": self.pool_id,
            "devices": [device],
            "duration": "1h",
            "idempotencyKey": key,
            **changes,
        }

    async def work(self) -> None:
        """Judge what was reported and work off what is due."""
        while await self.worker.judge_pass() == 0.0:
            pass
        while (await self.worker.work_due())[0]:
            pass

    async def send(self, node: FakeNode, envelope: envelope_pb2.Envelope, about: str) -> str:
        """Store a report as a gateway does, whatever is in it."""
        return await self.database.write(
            reports.store,
            node.epoch,
            Received(
                node_id=node.id,
                key_id=envelope.key_id,
                number=node.number,
                allocation_id=about,  # type: ignore[arg-type]
                envelope=envelope.SerializeToString(),
            ),
        )

    async def held(self, node: FakeNode) -> Sequence[Allocation]:
        """What the node's desired state assigns."""
        return await self.database.read(allocations.on_node, node.id)

    async def bind(self, *all_nodes: FakeNode) -> None:
        """Every node reports what its desired state assigns as bound, honestly signed."""
        for node in all_nodes:
            for allocation in await self.held(node):
                await self.send(node, node.seal(node.report(allocation)), allocation.id)
        await self.work()

    async def active(
        self, *all_nodes: FakeNode, count: int = 1, key: str = "k", **changes: Any
    ) -> Reservation:
        """A reservation that got as far as active."""
        made = await self.create(count, key=key, **changes)
        await self.work()
        await self.bind(*all_nodes)
        return await self.view(made.id)

    async def end(self, reservation_id: ReservationId, trigger: Trigger) -> Reservation:
        """Release or cancel as the API does."""

        def write(tx: Transaction) -> Reservation:
            row = reservations.get(tx, reservation_id)
            assert row is not None
            hand = Hand(tx, pools.lock(tx, row.pool_id), self.signer)
            row = reservations.lock(tx, reservation_id)
            assert row is not None
            return reservations.view(tx, apply.move(hand, row, trigger, bind_deadline_ms=None))

        return await self.database.write(write)

    async def extend(
        self, reservation_id: ReservationId, *, caller: Caller = ALICE, **longer: int
    ) -> Extension:
        """Extend as the API does: ``until_ms`` or ``by_ms``."""
        return await self.extensions.extend(caller, reservation_id, Longer(**longer))

    async def renew(self, reservation_id: ReservationId) -> Reservation:
        """Renew as the API does."""

        def write(tx: Transaction) -> Reservation:
            held = pools.lock_of(tx, reservation_id)
            row = reservations.lock(tx, reservation_id)
            assert held is not None
            assert row is not None
            return reservations.view(tx, apply.renew(Hand(tx, held, self.signer), row))

        return await self.database.write(write)

    async def end_if_live(self, reservation_id: ReservationId) -> None:
        """Release it unless it has ended."""
        if (await self.view(reservation_id)).state not in TERMINAL:
            await self.end(reservation_id, Trigger.RELEASED)

    async def rows(self, sql: str, **values: object) -> Sequence[Row]:
        """The rows of a query."""
        return await self.database.read(lambda tx: [dict(row) for row in tx.all(sql, **values)])

    async def view(self, reservation_id: ReservationId) -> Reservation:
        """The reservation as the API shows it."""

        def read(tx: Transaction) -> Reservation:
            row = reservations.get(tx, reservation_id)
            assert row is not None
            return reservations.view(tx, row)

        return await self.database.read(read)

    async def live(self, reservation_id: ReservationId) -> Sequence[Allocation]:
        """The reservation's live allocations."""
        return await self.database.read(allocations.live, reservation_id)

    async def events(self, reservation_id: ReservationId) -> Sequence[Event]:
        """The reservation's events."""
        return await self.database.read(events.of_subject, f"reservation/{reservation_id}")

    async def event_names(self, reservation_id: ReservationId) -> list[str]:
        """The last parts of the events' types, in order."""
        found = await self.events(reservation_id)
        return [event.type.removeprefix("reservation.") for event in found]

    async def desired(self, node: FakeNode) -> DesiredState:
        """The node's newest desired state; it must have one."""
        stored = await self.database.read(desired_states.get, node.id)
        assert stored is not None
        frame = desired_pb2.SignedDesiredState.FromString(stored.signed)
        return decode_desired(frame.envelope.payload)

    async def assigned(self, node: FakeNode) -> Sequence[str]:
        """The allocation ids in the node's newest desired state, none without one."""
        if await self.database.read(desired_states.get, node.id) is None:
            return []
        return [entry.allocation_id for entry in (await self.desired(node)).assignments]

    async def used(self, resource: str = "gpu") -> int:
        """What TENANT uses, checked against the sum of its charges."""

        def read(tx: Transaction) -> tuple[int, int]:
            used = {q.resource: q.used for q in quotas.of_tenant(tx, TENANT)}
            row = tx.one(
                "SELECT coalesce(sum(amount), 0) AS charged FROM quota_charges"
                " WHERE tenant_id = :tenant AND resource = :resource AND in_quota = 1",
                tenant=TENANT,
                resource=resource,
            )
            assert row is not None
            return used.get(resource, 0), int(row["charged"])

        used, charged = await self.database.read(read)
        assert used == charged
        return used


def new_authority(now_ms: int) -> Authority:
    """A CA in memory."""
    key = generate_key()
    certificate = issue_ca(key, DOMAIN, now_ms - DAY_MS, now_ms + 3650 * DAY_MS)
    return Authority(Credentials(key, (certificate,), (certificate,)), DOMAIN)
