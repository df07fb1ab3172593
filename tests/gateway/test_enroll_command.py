"""``bcd-gateway enroll`` against a placer's API port, or what pretends to be one."""

import asyncio
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest

from bcd.model.errors import AccessDenied
from bcd.signing.certificates import Role, key_of_csr, spiffe_id, to_der, to_pem
from bcd.signing.keyfile import load_credentials
from bcd.wire.compute.v1 import admin_pb2, admin_pb2_grpc
from bcd.wire.status import encode_error
from tests.authority import Authority


@dataclass
class PlacerApi(admin_pb2_grpc.CredentialsServiceServicer):
    """Grants gateways what they ask for, or something else."""

    authority: Authority = field(default_factory=Authority)
    role: str = Role.GATEWAY
    given_id: str = ""
    refuses: bool = False
    seen: list[admin_pb2.EnrollGatewayRequest] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    port: int = 0

    async def EnrollGateway(  # noqa: N802
        self, request: admin_pb2.EnrollGatewayRequest, context: Any
    ) -> admin_pb2.EnrollGatewayResponse:
        self.seen.append(request)
        self.tokens += [str(v) for k, v in context.invocation_metadata() if k == "authorization"]
        if self.refuses:
            status = encode_error(AccessDenied("only administrators enrol gateways"))
            await context.abort(status.code, status.details, status.trailing_metadata)
        gateway_id = self.given_id or request.gateway_id
        leaf = self.authority.sign(
            key_of_csr(request.csr), self.role, gateway_id, names=tuple(request.names)
        )
        return admin_pb2.EnrollGatewayResponse(
            chain=[to_der(leaf)], bundle=[self.authority.der], gateway_id=gateway_id
        )

    async def IssueToken(self, request: Any, context: Any) -> Any:  # noqa: N802
        raise NotImplementedError

    async def CreateJoinToken(self, request: Any, context: Any) -> Any:  # noqa: N802
        raise NotImplementedError

    ListJoinTokens = ExpireJoinToken = CreateJoinToken
    ListCertificates = RevokeCertificate = CreateJoinToken


@pytest.fixture
async def api() -> AsyncIterator[PlacerApi]:
    placer = PlacerApi()
    own = placer.authority.gateway("placer")
    server = grpc.aio.server()
    admin_pb2_grpc.add_CredentialsServiceServicer_to_server(placer, server)
    credentials = grpc.ssl_server_credentials([(own.key_pem, own.chain_pem)])
    placer.port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    yield placer
    await server.stop(0)


@dataclass(frozen=True, slots=True)
class Done:
    code: int | None
    out: str
    err: str


async def enroll(folder: Path, api: PlacerApi, *, ca: Authority | None = None) -> Done:
    """Run the command with files in ``folder``."""
    (folder / "gateway.toml").write_text(
        f'database = "postgresql:///x"\nstate = "{folder}/state"\nnames = ["gw.example"]\n'
        'id = "gw7"\n'
    )
    (folder / "token").write_text("secret.token\n")
    (folder / "ca.pem").write_bytes(to_pem([(ca or api.authority).certificate]))
    process = await asyncio.create_subprocess_exec(
        str(Path(sys.executable).with_name("bcd-gateway")),
        "enroll",
        f"--config={folder}/gateway.toml",
        f"--placer=localhost:{api.port}",
        f"--token-file={folder}/token",
        f"--ca-file={folder}/ca.pem",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(60):
        out, err = await process.communicate()
    return Done(process.returncode, out.decode(), err.decode())


async def test_enrolment_saves_a_certificate_for_the_configured_names(
    api: PlacerApi, tmp_path: Path
) -> None:
    done = await enroll(tmp_path, api)
    assert (done.code, done.out) == (0, f"{tmp_path}/state/credentials.pem\n"), done.err
    (request,) = api.seen
    assert (list(request.names), request.gateway_id) == (["gw.example"], "gw7")
    assert api.tokens == ["Bearer secret.token"]
    saved = load_credentials(tmp_path / "state", "")
    subject = spiffe_id(saved.leaf)
    assert subject is not None
    assert (subject.role, subject.id) == (Role.GATEWAY, "gw7")
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"refuses": True}, "only administrators"),
        ({"role": Role.NODE}, "is not the certificate of gateway gw7"),
        ({"given_id": "other"}, "is not the certificate of gateway gw7"),
    ],
)
async def test_a_refusal_or_a_foreign_answer_saves_nothing(
    api: PlacerApi, tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    for name, value in change.items():
        setattr(api, name, value)
    done = await enroll(tmp_path, api)
    assert done.code == 1
    assert words in done.err
    assert "Traceback" not in done.err
    assert not (tmp_path / "state" / "credentials.pem").exists()


async def test_a_placer_under_another_ca_is_not_given_the_token(
    api: PlacerApi, tmp_path: Path
) -> None:
    done = await enroll(tmp_path, api, ca=Authority())
    assert done.code == 1
    assert "Traceback" not in done.err
    assert api.tokens == []


@pytest.mark.parametrize("blocked", ["state", "state/credentials.pem"])
async def test_a_certificate_that_could_not_be_saved_is_not_asked_for(
    api: PlacerApi, tmp_path: Path, blocked: str
) -> None:
    if blocked == "state":
        (tmp_path / "state").touch()
    else:
        (tmp_path / blocked).mkdir(parents=True)
    done = await enroll(tmp_path, api)
    assert done.code == 1
    assert f"{tmp_path}/state: cannot be written" in done.err
    assert "Traceback" not in done.err
    assert api.seen == []
