"""Installing, running, upgrading, removing and purging on a clean Debian, without network."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.package.build import Debs, next_version
from tests.package.debian import Debian, copied

HOLD = {
    "/etc/cdi/bcd-alloc_x.json": '{"cdiVersion": "0.5.0"}\n',
    "/var/lib/bcd/credentials.pem": "a key\n",
    "/etc/bcd/bcd.toml": '[gateway]\naddress = "gateway.gpu.example:7443"\n',
}


def put(host: Debian, files: dict[str, str] = HOLD) -> None:
    for path, text in files.items():
        host.write(path, text, 0o600)


def kept(host: Debian) -> set[str]:
    """Which of a hold's files are there, unchanged."""
    return {
        path
        for path, text in HOLD.items()
        if host.path(path).is_file() and host.path(path).read_text() == text
    }


@pytest.mark.parametrize(
    "command", ["bcd --version", "bcd-placer --help", "bcd-gateway --help", "better-compute --help"]
)
def test_every_command_runs(installed: Debian, command: str) -> None:
    assert command.split()[0] in installed.run(*command.split())


def test_the_daemon_has_every_library_that_touches_the_host(installed: Debian) -> None:
    for library in ("pystemd.systemd1", "pystemd.dbuslib", "pynvml", "grpc", "psutil"):
        installed.run("/usr/lib/bcd/bin/python3", "-Ic", f"import {library}")
    for library in ("psycopg", "cedarpy", "grpc_reflection.v1alpha.reflection", "rich", "jwt"):
        installed.run("/usr/lib/bcd-control/bin/python3", "-Ic", f"import {library}")


def test_every_module_that_the_daemon_s_package_carries_finds_what_it_imports(
    installed: Debian,
) -> None:
    walk = (
        "import bcd, importlib, pkgutil\n"
        "for one in pkgutil.walk_packages(bcd.__path__, 'bcd.'):\n"
        "    importlib.import_module(one.name)\n"
        "print(one.name)"
    )
    assert installed.run("/usr/lib/bcd/bin/python3", "-Ic", walk).startswith("bcd.wire.")


def test_nothing_a_person_installed_gets_into_the_programs(host: Debian, debs: Debs) -> None:
    host.install(debs.daemon, debs.control)
    broken = "raise SystemExit('a stranger was imported')\n"
    for folder in (
        "/root/.local/lib/python3.11/site-packages", "/usr/local/lib/python3.11/dist-packages",
        "/usr/lib/python3/dist-packages", "/root/own",
    ):  # fmt: skip
        for name in ("grpc", "msgspec", "click", "sitecustomize", "usercustomize", "bcd"):
            host.write(f"{folder}/{name}.py", broken)
        host.write(f"{folder}/stranger.pth", "import bcd\n")
    env = {"PYTHONPATH": "/root/own", "PYTHONSTARTUP": "/root/own/bcd.py"}
    assert "stranger" in host.run("/usr/bin/python3", "-c", "import grpc", check=False, env=env)
    for command in ("bcd run || test $? = 78", "bcd-placer --help", "better-compute --help"):
        assert "stranger" not in host.script(f"cd /root/own; {command}", env=env)


def test_every_file_is_what_was_packed_and_running_adds_none(installed: Debian) -> None:
    assert installed.run("dpkg", "--verify", "bcd", "bcd-control") == ""
    for package in ("bcd", "bcd-control"):
        found = installed.run("find", f"/usr/lib/{package}").splitlines()
        assert set(found) <= set(installed.files(package))


def test_an_installed_host_is_told_how_to_join_and_starts_the_daemon_at_boot(
    host: Debian, debs: Debs
) -> None:
    said = host.install(debs.daemon)
    assert "bcd enroll --token-file" in said
    assert host.path("/etc/cdi").is_dir()
    assert host.path("/etc/systemd/system/multi-user.target.wants/bcd.service").is_symlink()
    host.script(said.partition("joined yet:\n")[2].partition("#")[0])
    assert host.path("/etc/bcd/bcd.toml").is_file()


def test_the_control_plane_can_be_set_up_with_what_is_installed(host: Debian, debs: Debs) -> None:
    host.install(debs.control)
    host.script(
        "install -D -m 644 /usr/share/bcd-control/placer.toml /etc/bcd/placer.toml;"
        "runuser -u bcd-placer -- bcd-placer init"
    )
    folder = host.path("/var/lib/bcd-placer")
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "ca.pem").is_file()
    assert list(host.path("/etc/systemd/system").rglob("*bcd*")) == []


def test_an_upgrade_replaces_the_programs_and_keeps_what_is_held(
    host: Debian, debs: Debs, tmp_path: Path
) -> None:
    host.install(debs.daemon)
    put(host)
    said = host.install(next_version(debs.daemon, tmp_path))
    assert host.path("/usr/share/bcd/newer").is_file()
    assert kept(host) == set(HOLD)
    assert "has not joined" not in said
    assert host.run("bcd", "--version").startswith("bcd ")


def test_a_daemon_that_was_disabled_stays_disabled_over_an_upgrade(
    host: Debian, debs: Debs, tmp_path: Path
) -> None:
    host.install(debs.daemon)
    link = host.path("/etc/systemd/system/multi-user.target.wants/bcd.service")
    host.run("systemctl", "disable", "bcd.service")
    assert not link.is_symlink()
    host.install(next_version(debs.daemon, tmp_path))
    assert not link.is_symlink()


def test_removal_keeps_what_is_held_and_says_what_that_means(host: Debian, debs: Debs) -> None:
    host.install(debs.daemon)
    put(host)
    said = host.run("dpkg", "--remove", "bcd")
    assert "Install bcd again to end them" in said
    assert kept(host) == set(HOLD)
    assert not host.path("/usr/bin/bcd").exists()
    assert not host.path("/usr/lib/bcd").exists()


def test_purging_leaves_everything_while_something_is_held(host: Debian, debs: Debs) -> None:
    host.install(debs.daemon)
    put(host)
    said = host.run("dpkg", "--purge", "bcd")
    assert "/var/lib/bcd and /run/bcd are left" in said
    assert kept(host) == set(HOLD)


OWN_FOLDERS = (
    '[paths]\nroot = "/srv/bcd"\n',
    '[paths]\n"state" = "/srv/state"\n',
    "[paths]\n'cdi' = '/srv/cdi'\n",
    'paths."env"="/srv/env"\n',
    'paths = { socket = "/run/s", state = "/srv/state" }\n',
)


@pytest.fixture(scope="module")
def removed(clean: Path, debs: Debs) -> Iterator[Debian]:
    """A Debian from which the daemon's package was removed, not purged. Not to be changed."""
    with copied(clean, clean.with_name("removed")) as host:
        host.install(debs.daemon)
        host.run("dpkg", "--remove", "bcd")
        yield host


@pytest.mark.parametrize("settings", OWN_FOLDERS)
def test_purging_leaves_everything_when_the_daemon_had_folders_of_its_own(
    removed: Debian, tmp_path: Path, settings: str
) -> None:
    with copied(removed.folder, tmp_path / "own") as host:
        put(host, {"/var/lib/bcd/credentials.pem": "a key\n"})
        host.write("/etc/bcd/bcd.toml", settings)
        assert "are left" in host.run("dpkg", "--purge", "bcd")
        assert host.path("/var/lib/bcd/credentials.pem").is_file()


def test_purging_leaves_everything_while_a_gpu_is_shared(removed: Debian, tmp_path: Path) -> None:
    with copied(removed.folder, tmp_path / "own") as host:
        put(host, {"/var/lib/bcd/credentials.pem": "a key\n"})
        said = host.script(
            "mkdir -p /run/bcd/mps; touch /run/bcd/mps/GPU-1.env; dpkg --purge bcd;ls /run/bcd/mps"
        )
        assert "are left" in said
        assert "GPU-1.env" in said
        assert host.path("/var/lib/bcd/credentials.pem").is_file()


def test_folders_that_cannot_be_made_are_told_and_end_no_installation(
    host: Debian, debs: Debs
) -> None:
    host.write("/usr/bin/systemd-tmpfiles", "#!/bin/sh\nexit 73\n", 0o755)
    said = host.install(debs.daemon, debs.control)
    for package in ("bcd", "bcd-control"):
        assert f"{package}: some folders could not be made; see: systemd-tmpfiles" in said
        assert "installed" in host.run("dpkg-query", "-W", "-f", "${db:Status-Status}", package)


def test_purging_an_idle_host_leaves_nothing_but_other_peoples_files(
    host: Debian, debs: Debs
) -> None:
    host.install(debs.daemon)
    put(host)
    host.path("/etc/cdi/bcd-alloc_x.json").unlink()
    host.write("/etc/cdi/nvidia.json", "{}\n")
    host.write("/etc/bcd/policies/own.cedar", "\n")
    host.run("dpkg", "--purge", "bcd")
    assert kept(host) == set()
    assert not host.path("/var/lib/bcd").exists()
    assert host.path("/etc/cdi/nvidia.json").is_file()
    assert host.path("/etc/bcd/policies/own.cedar").is_file()
    links = host.run("find", "/etc/systemd", "/var/lib/systemd", "-name", "*bcd*")
    assert links == ""


def test_purging_the_control_plane_leaves_its_keys_and_database(host: Debian, debs: Debs) -> None:
    host.install(debs.control)
    host.write("/var/lib/bcd-placer/ca.pem", "a CA\n")
    host.write("/var/lib/bcd-gateway/credentials.pem", "a key\n")
    assert "remove them by hand" in host.run("dpkg", "--purge", "bcd-control")
    assert host.path("/var/lib/bcd-placer/ca.pem").read_text() == "a CA\n"
    assert not host.path("/var/lib/bcd-gateway").exists()
