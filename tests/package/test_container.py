"""The image is what the Containerfile says, and compose.yaml names nothing that is not there."""

import asyncio
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from bcd.cli.placer import Settings as PlacerSettings
from bcd.cli.program import load_settings
from bcd.gateway.settings import Program as GatewaySettings
from bcd.store.open import open_database
from tests.package.build import ROOT
from tests.package.debian import Debian
from tests.package.image import Image
from tests.postgres import Cluster

PACKAGING = ROOT / "packaging"
_COMMANDS = (
    "bcd-placer", "bcd-placer init", "bcd-placer run", "bcd-placer token",
    "bcd-gateway", "bcd-gateway enroll", "bcd-gateway run", "better-compute",
)  # fmt: skip
_SERVE = """
/opt/bcd/bin/python -I /opt/bcd/health.py localhost:1 /opt/bcd/pyvenv.cfg || echo "rc $?"
cp /settings.toml /tmp/placer.toml
bcd-placer init --config /tmp/placer.toml
bcd-placer run --config /tmp/placer.toml --with-gateway 2>/tmp/log &
for i in $(seq 100); do
  if /opt/bcd/bin/python -I /opt/bcd/health.py localhost:7445 /var/lib/bcd-placer/ca.pem; then
    exec /opt/bcd/bin/python -I /opt/bcd/health.py localhost:7444 /var/lib/bcd-placer/ca.pem
  fi
  sleep 0.1
done
cat /tmp/log
exit 1
"""
_SETTINGS = """
database = "sqlite:////var/lib/bcd-placer/bcd.db"
[api]
listen = "127.0.0.1:7445"
names = ["localhost"]
[gateway]
names = ["localhost"]
node_listen = "127.0.0.1:7443"
enrolment_listen = "127.0.0.1:7444"
"""


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    built = Image(tmp_path_factory.mktemp("image"))
    built.build()
    yield built
    shutil.rmtree(built.folder)


@pytest.fixture(scope="module")
def compose(image: Image) -> dict[str, Any]:
    """compose.yaml as a document."""
    text = (PACKAGING / "compose.yaml").read_text()
    Debian(image.base).write("/root/compose.yaml", text)
    script = "import json, yaml; print(json.dumps(yaml.safe_load(open('/root/compose.yaml'))))"
    document: dict[str, Any] = json.loads(Debian(image.base).run("python3", "-c", script))
    return document


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    """The folder that ``make-secrets`` makes, in a copy of its own."""
    shutil.copytree(PACKAGING / "compose", tmp_path / "compose")
    shutil.rmtree(tmp_path / "compose/secrets", ignore_errors=True)
    subprocess.run([tmp_path / "compose/make-secrets"], check=True)
    return tmp_path / "compose/secrets"


@pytest.fixture(scope="module")
def helps(image: Image) -> dict[str, str]:
    """What each command says of itself in the image, by ``program verb``, and who asked."""
    ask = "".join(f'echo "== {name}"; {name} --help\n' for name in _COMMANDS)
    parts = re.split(
        r"^== (.*)\n", image.run(["sh", "-euc", f"{ask}echo '== id'; id -u"]), flags=re.M
    )
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.timeout(900)
def test_every_command_is_in_the_image_and_runs_as_nobody_in_particular(
    helps: dict[str, str],
) -> None:
    for command in _COMMANDS:
        assert re.match(rf"usage: {command}\b", helps[command], re.I)
    assert helps["id"] == "10001\n"


def test_placer_and_gateway_serve_in_the_image_and_its_probe_sees_it(
    image: Image, tmp_path: Path
) -> None:
    (tmp_path / "settings.toml").write_text(_SETTINGS)
    said = image.run(
        ["sh", "-eu", "-c", _SERVE],
        f"--volume={tmp_path}/settings.toml:/settings.toml:ro", "--volume=/var/lib/bcd-placer",
    )  # fmt: skip
    assert "localhost:1: UNAVAILABLE" in said
    assert "rc 1\n" in said
    assert "localhost:7445: SERVING" in said
    assert "localhost:7444: SERVING" in said


def test_every_path_of_compose_is_there_or_made(compose: dict[str, Any], secrets: Path) -> None:
    folder = secrets.parents[1]
    for service in compose["services"].values():
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (folder / source).is_file(), source
            else:
                assert source in compose["volumes"]
        assert set(service["secrets"]) <= set(compose["secrets"])
        assert set(service["networks"]) <= set(compose["networks"])
    for secret in compose["secrets"].values():
        assert (folder / secret["file"]).is_file()
    build = compose["services"]["placer"]["build"]
    assert (PACKAGING / build["context"] / build["dockerfile"]).is_file()


def test_every_option_that_compose_gives_is_known(
    compose: dict[str, Any], helps: dict[str, str]
) -> None:
    given = [" ".join(s["command"]) for s in compose["services"].values() if "command" in s]
    comment = (PACKAGING / "compose.yaml").read_text().partition("name:")[0]
    given += re.findall(r"(bcd-\w+ [^|#]*)", comment.replace("\\\n#", " "))
    assert len(given) == 5
    for line in given:
        program, verb, *rest = line.split()
        known = helps[f"{program} {verb}"]
        for option in (word for word in rest if word.startswith("--")):
            assert re.search(rf"{option}\b", known), line


def test_a_program_s_probe_asks_a_port_and_name_that_it_serves(compose: dict[str, Any]) -> None:
    placer = load_settings(PACKAGING / "compose/placer.toml", PlacerSettings)
    gateway = load_settings(PACKAGING / "compose/gateway.toml", GatewaySettings)
    served = {
        "placer": (placer.api.listen, placer.api.names, placer.database),
        "gateway": (gateway.gateway.enrolment_listen, gateway.names, gateway.database),
    }
    for name, (listen, names, database) in served.items():
        service = compose["services"][name]
        host, _, port = service["healthcheck"]["test"][4].rpartition(":")
        assert host in names
        assert listen.endswith(f":{port}")
        assert f"{port}:{port}" in service["ports"]
        assert database == f"postgresql://bcd-{name}@database/bcd"


def test_passwords_are_their_readers_alone_and_are_not_made_twice(secrets: Path) -> None:
    owners = {path.name: path.stat() for path in secrets.iterdir()}
    for name, uid in (("postgres", 999), ("roles.sql", 999), ("placer.pgpass", 10001)):
        assert (owners[name].st_uid, owners[name].st_mode & 0o777) == (uid, 0o600)
    again = subprocess.run(
        [secrets.parent / "make-secrets"], capture_output=True, text=True, check=False
    )
    assert again.returncode == 1
    assert "is there already" in again.stderr


def test_the_roles_suffice_for_the_placer_and_keep_the_gateway_small(secrets: Path) -> None:
    roles = (secrets / "roles.sql").read_text()
    for name in ("placer", "gateway"):
        *_, user, password = (secrets / f"{name}.pgpass").read_text().strip().split(":")
        assert re.search(f"\"{user}\" LOGIN PASSWORD '{password}'", roles)
    with Cluster() as cluster:
        with psycopg.connect(cluster.url("postgres"), autocommit=True) as admin:
            for before in ("DATABASE bcd_template", "ROLE gateway_of_tests", "ROLE bcd_gateway"):
                admin.execute(f"DROP {before}".encode())
            for statement in roles.split(";\n")[:-1]:
                admin.execute(statement.encode())
        makes_the_schema = open_database(cluster.url("bcd", "bcd-placer"))
        asyncio.run(makes_the_schema.close())
        with psycopg.connect(cluster.url("bcd", "bcd-gateway"), autocommit=True) as gateway:
            assert gateway.execute("SELECT count(*) FROM desired_states").fetchone() == (0,)
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                gateway.execute("DELETE FROM reservations")
