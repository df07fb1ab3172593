"""Carries enrolments and renewals to the placer and its answers back, trusting neither side.

The port asks for no client certificate, so every size is bounded here, and so is the number of
callers at a time. The placer decides; the node checks the answer against the pin of its token.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from typing import Any

import grpc

from bcd.gateway.settings import Settings
from bcd.model.errors import AccessDenied, BcdError, InvalidInput, Unavailable
from bcd.model.ids import is_plain_name
from bcd.model.pace import Pace
from bcd.store import enrolments
from bcd.store.database import Database
from bcd.store.enrolments import Answer, Kind
from bcd.wire.node.v1 import enrollment_pb2 as pb
from bcd.wire.node.v1.enrollment_pb2_grpc import EnrollmentServiceServicer
from bcd.wire.status import encode_error

logger = logging.getLogger(__name__)

_Context = grpc.aio.ServicerContext[Any, Any]

MAX_ENROLMENT_BYTES = 64 * 1024
MAX_CSR_BYTES = 8 * 1024
_HMAC_BYTES = 32
_POLL_S = 1.0
_LINES_AT_ONCE = 20
_LINE_INTERVAL_S = 5.0


class Relay:
    """Queues requests in the database and waits for the placer's answers."""

    def __init__(self, database: Database, timeout_ms: int) -> None:
        self._database = database
        self._timeout_s = timeout_ms / 1000
        self._answered: dict[str, asyncio.Event] = {}

    def on_answer(self, enrolment_id: str) -> None:
        """The wake-up ``enrolment-answer``: a request of some gateway has its answer."""
        event = self._answered.get(enrolment_id)
        if event is not None:
            event.set()

    async def ask(self, kind: Kind, body: bytes) -> bytes:
        """The Credentials frame that answers a request.

        Raises AccessDenied with the placer's reason, or Unavailable when no placer answers.
        """
        enrolment_id = await self._database.write(enrolments.submit, kind, body)
        if enrolment_id is None:
            raise Unavailable("too many enrolments are waiting for the placer: try again later")
        answered = self._answered[enrolment_id] = asyncio.Event()
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await self._wait(enrolment_id, answered)
        except TimeoutError as error:
            raise Unavailable("the placer did not answer in time: try again later") from error
        finally:
            del self._answered[enrolment_id]
        if answer.credentials is None:
            raise AccessDenied(answer.refusal or "the placer refused")
        return answer.credentials

    async def _wait(self, enrolment_id: str, answered: asyncio.Event) -> Answer:
        while True:
            answer = await self._database.read(enrolments.answer_of, enrolment_id)
            if answer is not None:
                return answer
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_POLL_S):
                    await answered.wait()
            answered.clear()


class Enrolments(EnrollmentServiceServicer):
    """The service on the enrolment port."""

    def __init__(self, relay: Relay, settings: Settings, counters: Counter[str]) -> None:
        self._relay = relay
        self._free = settings.max_enrolments
        self._lines = Pace(_LINES_AT_ONCE, _LINE_INTERVAL_S)
        self._untold = 0
        self._counters = counters

    async def Enroll(  # noqa: N802
        self, request: pb.EnrollRequest, context: _Context
    ) -> pb.EnrollResponse:
        """A node joins with a token."""
        return pb.EnrollResponse(credentials=await self._serve("join", request, context))

    async def Renew(  # noqa: N802
        self, request: pb.RenewRequest, context: _Context
    ) -> pb.RenewResponse:
        """A node, or another gateway, renews its certificate with its old key."""
        return pb.RenewResponse(credentials=await self._serve("renewal", request, context))

    async def _serve(
        self,
        kind: Kind,
        request: pb.EnrollRequest | pb.RenewRequest,
        context: _Context,
    ) -> pb.Credentials:
        """The API edge of this port: every failure leaves as a status with its reason."""
        self._counters[f"enrolments_{kind}"] += 1
        try:
            _check(request)
            return await self._ask(kind, request.SerializeToString())
        except BcdError as error:
            self._counters["enrolments_refused"] += 1
            self._tell(kind, error.message)
            status = encode_error(error)
        except Exception:
            logger.exception("enrolment failed", extra={"kind": kind})
            status = encode_error(BcdError("internal error"))
        await context.abort(status.code, status.details, status.trailing_metadata)
        raise AssertionError("abort returned")

    def _tell(self, kind: Kind, reason: str) -> None:
        """One line, but no more than a person can read: anybody may call here."""
        if not self._lines.allows(asyncio.get_running_loop().time()):
            self._untold += 1
            return
        fields = {"kind": kind, "reason": reason, "untold_before": self._untold}
        logger.warning("enrolment refused", extra=fields)
        self._untold = 0

    async def _ask(self, kind: Kind, body: bytes) -> pb.Credentials:
        if not self._free:
            raise Unavailable("too many enrolments at a time: try again later")
        self._free -= 1
        try:
            return pb.Credentials.FromString(await self._relay.ask(kind, body))
        finally:
            self._free += 1


def _check(request: pb.EnrollRequest | pb.RenewRequest) -> None:
    """Bound what is stored for the placer; raises InvalidInput naming the field."""
    if isinstance(request, pb.RenewRequest):
        _bounded("envelope.payload", request.envelope.payload, MAX_CSR_BYTES)
        return
    if not is_plain_name(request.token_id):
        raise InvalidInput("tokenId", "is not the id of a join token")
    _bounded("csr", request.csr, MAX_CSR_BYTES)
    if len(request.hmac) != _HMAC_BYTES:
        raise InvalidInput("hmac", f"must have {_HMAC_BYTES} bytes")


def _bounded(field: str, content: bytes, limit: int) -> None:
    if not 0 < len(content) <= limit:
        raise InvalidInput(field, f"must have 1 to {limit} bytes")
