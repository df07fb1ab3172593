"""A bare mTLS stream in a process of its own: the floor of a round trip, and of a bind.

Run as ``python -m tests.bench.echo KEY CHAIN ROOTS [FOLDER]``; prints its port. Every message comes
back. With a folder each is a signed desired state, and what no bind can go without is done first:
its signature is verified, a report is signed, and four files are replaced. The report comes back.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc

from bcd.durable import replace_file
from bcd.signing.certificates import parse_certificate, public_key
from bcd.signing.envelope import PayloadType, opens, seal
from bcd.signing.keyfile import Credentials
from bcd.signing.keys import key_from_pem
from bcd.wire.node.v1.desired_pb2 import SignedDesiredState

METHOD = "/bench.Echo/Stream"
Stream = grpc.aio.StreamStreamCall[bytes, bytes]

# Desired state, spec, env file and outbox; power loss may take the env file.
_DURABLE = (True, True, False, True)
_SPEC = bytes(4096)
_REPORT = bytes(400)


def replace_files(folder: Path) -> None:
    """The writes of one bind."""
    for file, durable in enumerate(_DURABLE):
        replace_file(folder / f"floor-{file}", _SPEC, durable=durable)


@asynccontextmanager
async def echo_stream(
    credentials: Credentials, folder: Path, binds: Path | None = None
) -> AsyncIterator[tuple[Stream, int]]:
    """(a bare mTLS stream to a process that echoes, its pid); ``binds`` is its FOLDER."""
    files = []
    for name, content in (
        ("key", credentials.key_pem),
        ("chain", credentials.chain_pem),
        ("roots", credentials.bundle_pem),
    ):
        files.append(folder / f"echo-{name}.pem")
        files[-1].write_bytes(content)
    arguments = [str(path) for path in (*files, binds) if path is not None]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.bench.echo", *arguments, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    port = int(await process.stdout.readline())
    tls = grpc.ssl_channel_credentials(
        credentials.bundle_pem, credentials.key_pem, credentials.chain_pem
    )
    try:
        async with grpc.aio.secure_channel(f"localhost:{port}", tls) as channel:
            yield channel.stream_stream(METHOD)(), process.pid
    finally:
        process.kill()
        await process.wait()


class Echo(grpc.GenericRpcHandler):
    """One method, bytes in, bytes out."""

    def __init__(self, answer: Callable[[bytes], bytes]) -> None:
        self._answer = answer

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> "grpc.RpcMethodHandler[bytes, bytes]":
        """Serve whatever is called."""

        async def stream(messages: AsyncIterator[bytes], _context: object) -> AsyncIterator[bytes]:
            async for message in messages:
                yield self._answer(message)

        return grpc.stream_stream_rpc_method_handler(stream)


def bare_bind(key_pem: bytes, folder: Path) -> Callable[[bytes], bytes]:
    """What becomes of a signed desired state: files in ``folder``, and a signed report."""
    key = key_from_pem(key_pem)

    def answer(message: bytes) -> bytes:
        frame = SignedDesiredState.FromString(message)
        signer = public_key(parse_certificate(frame.certificate))
        assert opens(frame.envelope, PayloadType.DESIRED_STATE, signer)
        sealed = seal(key, PayloadType.ATTESTED_REPORT, _REPORT).SerializeToString()
        replace_files(folder)
        return sealed

    return answer


async def main(key: bytes, chain: bytes, roots: bytes, answer: Callable[[bytes], bytes]) -> None:
    """Serve until killed."""
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Echo(answer),))
    credentials = grpc.ssl_server_credentials([(key, chain)], roots, True)
    print(server.add_secure_port("127.0.0.1:0", credentials), flush=True)
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    own, issuers, trusted = (Path(argument).read_bytes() for argument in sys.argv[1:4])
    work = bare_bind(own, Path(sys.argv[4])) if sys.argv[4:] else bytes
    asyncio.run(main(own, issuers, trusted, work))
