"""One request to a receiver: where it goes, and what a receiver can do to it."""

import asyncio
import ipaddress
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from bcd.placer.events.post import Answer, Poster, Refused, Resolver
from bcd.placer.events.target import Reach, Target, networks_of, parse_target
from bcd.signing.certificates import Role, to_pem
from bcd.signing.keys import key_to_pem
from tests.authority import Authority
from tests.placer.events.receiver import Post, never, receiving, status

LOOPBACK = Reach(allow_http=True, networks=networks_of(["127.0.0.0/8"]))
HEADERS = {"webhook-id": "evt_1"}


class Names:
    """A name service that gives its answers one by one, the last one for ever."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self._answers = list(answers)
        self.asked = 0

    async def __call__(self, _host: str, _port: int) -> Sequence[str]:
        self.asked += 1
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


def poster(reach: Reach = LOOPBACK, *answers: Sequence[str], total_s: float = 20.0) -> Poster:
    names = Names(*(answers or (["127.0.0.1"],)))
    return Poster(reach, names, ssl.create_default_context(), total_s=total_s)


def target(port: int, host: str = "hooks.example") -> Target:
    return parse_target(f"http://{host}:{port}/in?room=1", LOOPBACK)


async def test_a_request_arrives_whole_and_its_status_is_the_answer() -> None:
    async with receiving(status(204)) as receiver:
        answer = await poster().post(target(receiver.port), HEADERS, b'{"a":1}')
        (post,) = receiver.posts
    assert answer == Answer(204)
    assert answer.accepted
    assert post.line == "POST /in?room=1 HTTP/1.1"
    assert post.body == b'{"a":1}'
    assert post.headers["host"] == f"hooks.example:{receiver.port}"
    assert post.headers["webhook-id"] == "evt_1"
    assert post.headers["content-type"] == "application/json"


@pytest.mark.parametrize("code", [301, 302, 307, 308])
async def test_a_redirect_is_not_followed(code: int) -> None:
    async with receiving() as other, receiving(status(code, f"location: {other.url}")) as receiver:
        answer = await poster().post(target(receiver.port), HEADERS, b"{}")
        assert (len(receiver.posts), len(other.posts)) == (1, 0)
    assert not answer.accepted
    assert "redirects are not followed" in answer.problem


async def test_an_interim_answer_is_not_the_answer() -> None:
    async def hints(post: Post, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n")
        await status(200)(post, writer)

    async with receiving(hints) as receiver:
        assert (await poster().post(target(receiver.port), HEADERS, b"{}")).status == 200


def says(raw: bytes, *, hang: bool = False) -> object:
    async def answer(_post: Post, writer: asyncio.StreamWriter) -> None:
        writer.write(raw)
        await writer.drain()
        if hang:
            await asyncio.Event().wait()

    return answer


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [
        (says(b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 10_000, hang=True), "larger than"),
        (says(b"SSH-2.0-OpenSSH_9.2\r\n\r\n"), "HTTP/1.1"),
        (says(b"HTTP/1.1 103 Hints\r\n\r\n" * 9), "interim"),
        (says(b"HTTP/1.1 200 OK\r\n"), "closed the connection"),
        (says(b""), "closed the connection"),
        (never, "did not answer within 0.5 s"),
        (says(b"HTTP/1.1 200 OK\r\n", hang=True), "did not answer within 0.5 s"),
    ],
)
async def test_what_is_no_answer_is_a_problem_in_words(behaviour: object, words: str) -> None:
    async with receiving(behaviour) as receiver:  # type: ignore[arg-type]
        answer = await poster(total_s=0.5).post(target(receiver.port), HEADERS, b"{}")
    assert answer.status == 0
    assert words in answer.problem


async def test_a_body_that_never_ends_is_not_read() -> None:
    async def endless(_post: Post, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"1000\r\n" + b"x" * 4096 + b"\r\n")
            await writer.drain()

    async with receiving(endless) as receiver:
        assert (await poster().post(target(receiver.port), HEADERS, b"{}")).accepted


async def test_nobody_there_is_a_problem_in_words() -> None:
    async with receiving() as receiver:
        port = receiver.port
    answer = await poster().post(target(port), HEADERS, b"{}")
    assert answer == Answer(0, "it cannot be connected to")


async def test_a_second_address_is_tried_where_the_first_does_not_answer() -> None:
    async with receiving() as receiver:
        both = poster(LOOPBACK, ["127.0.0.2", "127.0.0.1"])
        assert (await both.post(target(receiver.port), HEADERS, b"{}")).accepted


@pytest.mark.parametrize(
    "addresses",
    [
        ["127.0.0.1"],
        ["::1"],
        ["::ffff:127.0.0.1"],
        ["169.254.169.254"],
        ["fe80::1%eth0"],
        ["8.8.8.8", "10.0.0.1"],
        [],
    ],
)
async def test_a_name_with_an_address_inside_is_not_dialled(addresses: Sequence[str]) -> None:
    async with receiving() as receiver:
        strict = poster(Reach(allow_http=True), addresses)
        answer = await strict.post(target(receiver.port), HEADERS, b"{}")
        assert receiver.posts == []
    assert answer.status == 0
    assert "not public" in answer.problem
    assert not any(address in answer.problem for address in addresses)


@pytest.mark.parametrize("host", ["2130706433", "0x7f000001", "0177.0.0.1", "127.1", "0"])
async def test_a_spelling_that_the_system_reads_as_loopback_is_judged_as_loopback(
    host: str,
) -> None:
    resolver = Resolver(2)
    strict = Poster(Reach(allow_http=True), resolver, ssl.create_default_context())
    with pytest.raises(Refused, match="not public"):
        await strict.addresses(parse_target(f"http://{host}/", LOOPBACK))
    resolver.close()


async def test_a_name_that_moves_inside_after_it_was_added_is_not_dialled() -> None:
    async with receiving() as receiver:
        names = Names(["8.8.8.8"], ["127.0.0.1"])
        strict = Poster(Reach(allow_http=True), names, ssl.create_default_context())
        where = target(receiver.port)
        assert await strict.addresses(where) == [ipaddress.ip_address("8.8.8.8")]
        assert "not public" in (await strict.post(where, HEADERS, b"{}")).problem
        assert receiver.posts == []


async def test_the_address_that_was_judged_is_the_one_that_is_dialled() -> None:
    """The name is asked for once: what it means a moment later changes nothing."""
    names = Names(["127.0.0.1"], ["127.0.0.2"])
    async with receiving() as receiver:
        once = Poster(LOOPBACK, names, ssl.create_default_context())
        assert (await once.post(target(receiver.port), HEADERS, b"{}")).accepted
    assert names.asked == 1


async def test_a_name_that_is_not_known_is_a_problem_in_words() -> None:
    async def unknown(_host: str, _port: int) -> Sequence[str]:
        raise OSError("no such name")

    lost = Poster(LOOPBACK, unknown, ssl.create_default_context())
    assert "cannot be resolved" in (await lost.post(target(1), HEADERS, b"{}")).problem


@dataclass(frozen=True, slots=True)
class Certified:
    """TLS for hooks.example, and a client's trust in its CA."""

    server: ssl.SSLContext
    trust: ssl.SSLContext


@pytest.fixture
def certified(tmp_path: Path) -> Certified:
    credentials = Authority().issue(Role.PLACER, "hooks", names=("hooks.example",))
    path = tmp_path / "server.pem"
    path.write_bytes(to_pem(credentials.chain) + key_to_pem(credentials.key))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(path)
    trust = ssl.create_default_context(cadata=to_pem(credentials.bundle).decode())
    return Certified(server, trust)


async def test_the_certificate_is_checked_against_the_name_and_not_the_address(
    certified: Certified,
) -> None:
    names = Names(["127.0.0.1"])
    async with receiving(tls=certified.server) as receiver:
        for host, trust, words in (
            ("hooks.example", certified.trust, ""),
            ("other.example", certified.trust, "certificate is not trusted: Hostname mismatch"),
            ("hooks.example", ssl.create_default_context(), "certificate is not trusted"),
        ):
            where = parse_target(f"https://{host}:{receiver.port}/", LOOPBACK)
            answer = await Poster(LOOPBACK, names, trust).post(where, HEADERS, b"{}")
            assert words in answer.problem
            assert answer.accepted is (words == "")
        assert len(receiver.posts) == 1


async def test_a_receiver_without_tls_gets_nothing(certified: Certified) -> None:
    async with receiving() as receiver:
        where = parse_target(f"https://hooks.example:{receiver.port}/", LOOPBACK)
        plain = Poster(LOOPBACK, Names(["127.0.0.1"]), certified.trust)
        assert not (await plain.post(where, HEADERS, b"{}")).accepted
        assert receiver.posts == []
