"""Frames of protocol version 1 as a daemon of that version writes them, byte for byte.

``python -m tests.wire.frozen`` wrote tests/wire/data/v1 once; the files are never written again,
because daemons of that version will go on sending exactly these bytes.
"""

from pathlib import Path

from bcd.wire.node.v1 import desired_pb2, enrollment_pb2, envelope_pb2, inventory_pb2, report_pb2
from bcd.wire.node.v1 import gateway_pb2 as pb

DATA = Path(__file__).parent / "data" / "v1"
NODE = "node_01h2xcejqtf2nbrexx3vqjhp41"
ALLOCATION = "alloc_01h2xcejqtf2nbrexx3vqjhp42"

HELLO = pb.Hello(
    node_id=NODE,
    protocol_version=1,
    min_protocol_version=1,
    daemon_version="0.1.0",
    boot_id="0f1e2d3c-0000-4000-8000-000000000001",
    process_instance="01890a5d-ac96-774b-bcce-b302099a8057",
    capabilities=["attested-reports", "devices.limits"],
    applied_epoch=1,
    applied_generation=7,
    applied_hash="ab" * 32,
    inventory_hash="cd" * 32,
)
REPORT = report_pb2.AttestedReport(
    node_id=NODE,
    number=12,
    boot_id="0f1e2d3c-0000-4000-8000-000000000001",
    allocation_id=ALLOCATION,
    signed_at_ms=1_700_000_000_123,
    bound=report_pb2.Bound(
        cdi_devices=["bcd.dev/gpu=GPU-0"],
        env_file=f"/run/bcd/allocations/{ALLOCATION}.env",
        cgroup_parent=f"bcd-alloc-{ALLOCATION}.slice",
    ),
)
ENVELOPE = envelope_pb2.Envelope(
    payload_type="application/vnd.bcd.attested-report.v1+protobuf",
    payload=REPORT.SerializeToString(deterministic=True),
    key_id="ef" * 32,
    signature=b"\x30\x06\x02\x01\x01\x02\x01\x01",
)
INVENTORY = inventory_pb2.Inventory(
    hash="7d8a1a6ba1f5f8cbd5d3c0cbcd1bc4b0",
    host=inventory_pb2.Host(
        hostname="gpu-1",
        boot_id="0f1e2d3c-0000-4000-8000-000000000001",
        kernel="6.1.0-18-amd64",
        driver_version="550.54.15",
        cuda_version="12.4",
        online_cpus="0-7",
        isolated_cpus="7",
        memory_bytes=1 << 40,
        numa_nodes=[
            inventory_pb2.NumaNode(
                id=0,
                cpus="0-7",
                memory_bytes=1 << 40,
                huge_pages=[inventory_pb2.HugePagePool(page_bytes=1 << 30, total=16)],
            )
        ],
    ),
    devices=[
        inventory_pb2.Device(
            id="GPU-0",
            device_class="gpu",
            model="NVIDIA H100 80GB HBM3",
            memory_bytes=80 << 30,
            pci_address="0000:1b:00.0",
            numa_node=0,
            nvlink_peers=["GPU-1"],
            nvlink_domain="nvswitch",
            gpu="GPU-0",
            health=inventory_pb2.Health(state=inventory_pb2.HEALTH_STATE_HEALTHY),
        )
    ],
)
STATE = desired_pb2.DesiredState(
    node_id=NODE,
    control_epoch=1,
    generation=8,
    host_reserve=desired_pb2.HostReserve(vcpu=2, memory_bytes=4 << 30),
    assignments=[
        desired_pb2.Assignment(
            allocation_id=ALLOCATION,
            devices=[desired_pb2.AssignedDevice(id="GPU-0", device_class="gpu")],
            until_ms=1_700_003_600_000,
            limits=desired_pb2.Limits(
                cpu_millis=8000,
                memory_bytes=64 << 30,
                hugepages_1gi=1,
                cpus="0-6",
                mems="0",
            ),
            binding=desired_pb2.BINDING_HOLD,
        )
    ],
)
FRAMES = {
    "hello": pb.ConnectRequest(hello=HELLO),
    "inventory": pb.ConnectRequest(inventory=INVENTORY),
    "heartbeat": pb.ConnectRequest(heartbeat=pb.Heartbeat(inventory_hash="cd" * 32)),
    "ack": pb.ConnectRequest(
        ack=pb.Ack(
            epoch=1,
            generation=7,
            hash="ab" * 32,
            status=pb.ACK_STATUS_PARTIAL,
            errors=[pb.AckError(allocation_id=ALLOCATION, reason="device-unhealthy")],
        )
    ),
    "report": pb.ConnectRequest(report=ENVELOPE),
    "goodbye": pb.ConnectRequest(goodbye=pb.Goodbye(reason="stopping")),
    "desired-state": STATE,
    "enroll": enrollment_pb2.EnrollRequest(token_id="jt1", csr=b"\x30\x00", hmac=b"h" * 32),
    "renew": enrollment_pb2.RenewRequest(envelope=ENVELOPE),
}


def main() -> None:
    """Write the files that are not there yet."""
    DATA.mkdir(parents=True, exist_ok=True)
    for name, frame in FRAMES.items():
        path = DATA / f"{name}.bin"
        if not path.exists():
            path.write_bytes(frame.SerializeToString(deterministic=True))


if __name__ == "__main__":
    main()
