"""``bcd inventory`` for people: NUMA, NVLink, MIG, use and health, in one table."""

from typing import Any

from bcd.cli.bcd_inventory import lines

HOST = {
    "hostname": "gpu1",
    "kernel": "6.1",
    "driverVersion": "550.54.15",
    "cudaVersion": "12.4",
    "onlineCpus": "0-15",
    "isolatedCpus": "14-15",
    "memoryBytes": 256 << 30,
    "numaNodes": [
        {
            "memoryBytes": 128 << 30,
            "cpus": "0-7",
            "hugePages": [{"pageBytes": 1 << 30, "total": 8}],
        },
        {"id": 1, "hugePages": [{"pageBytes": 2 << 20}]},
    ],
}


def device(**changes: Any) -> dict[str, Any]:
    fields = {
        "id": "GPU-1",
        "deviceClass": "gpu",
        "model": "NVIDIA H100",
        "memoryBytes": 80 << 30,
        "numaNode": 0,
        "health": {"state": 1},
    }
    return fields | changes


def rows(*devices: dict[str, Any], held: dict[str, str] | None = None) -> list[str]:
    return list(lines({"host": HOST, "devices": list(devices)}, held or {}))[6:]


def test_the_host_comes_first() -> None:
    assert list(lines({"host": HOST}, {})) == [
        "host    gpu1, kernel 6.1",
        "driver  550.54.15, CUDA 12.4",
        "cpus    0-15, isolated 14-15",
        "memory  256 GiB",
        "numa 0  128 GiB, cpus 0-7, 8 pages of 1 GiB",
        "numa 1  0 GiB, cpus none",
    ]


def test_a_host_without_a_driver_says_so() -> None:
    assert "driver  none seen" in list(lines({}, {}))


def test_numa_nvlink_and_health_have_columns() -> None:
    head, first, second, third = rows(
        device(nvlinkDomain="fabric-1"),
        device(id="GPU-2", nvlinkPeers=["GPU-1", "GPU-3"], numaNode=1),
        device(id="GPU-3", health={"state": 3, "reason": "Xid 79"}) | {"numaNode": 3},
    )
    assert head.split() == ["CLASS", "ID", "NUMA", "MEMORY", "NVLINK", "MODEL", "HEALTH"]
    assert "fabric-1" in first
    assert first.endswith("NVIDIA H100  healthy")
    assert "2 peers" in second
    assert third.endswith("unhealthy: Xid 79")


def test_an_unknown_numa_node_is_not_node_zero() -> None:
    unknown = {key: value for key, value in device().items() if key != "numaNode"}
    assert rows(unknown)[1].split()[2] == "?"


def test_mig_shows_mode_and_profile() -> None:
    _, parent, instance = rows(
        device(migEnabled=True),
        device(id="MIG-1", deviceClass="gpu.mig", profile="1g.10gb"),
    )
    assert "MIG mode" in parent
    assert "1g.10gb" in instance


def test_use_names_the_hold_or_somebody_else() -> None:
    _, held, other, free = rows(
        device(),
        device(id="GPU-2", inUse=True),
        device(id="GPU-3"),
        held={"bcd.dev/gpu=GPU-1": "alloc_1"},
    )
    assert "alloc_1" in held
    assert "in use" in other
    assert "in use" not in free


def test_a_state_of_a_newer_daemon_is_unknown() -> None:
    assert rows(device(health={"state": 9}))[1].endswith("unknown")
    assert rows(device(health={}))[1].endswith("unknown")
