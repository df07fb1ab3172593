"""The API's edge: who calls, what they sent, and how a failure leaves.

Handlers take (caller, message) and return a message or raise a BcdError; no traceback and no
internal text reaches a caller.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

import grpc
from google.protobuf.message import Message

from bcd.model.caller import Caller
from bcd.model.errors import (
    AccessDenied,
    BcdError,
    InvalidInput,
    Reason,
    Unauthenticated,
    Unavailable,
)
from bcd.model.printable import printable
from bcd.placer.api.texts import text_with_nul
from bcd.placer.pki.issuer import Issuer
from bcd.store.database import StoreUnavailable
from bcd.wire.status import encode_error
from bcd.wire.unknown import unknown_field

logger = logging.getLogger(__name__)

Q = TypeVar("Q", bound=Message)
A = TypeVar("A", bound=Message)
T = TypeVar("T")
Handler = Callable[[Caller, Q], Awaitable[A]]
StreamHandler = Callable[[Caller, Q, Callable[[A], Awaitable[None]]], Awaitable[None]]
Context = grpc.aio.ServicerContext[Any, Any]

_BEARER = "Bearer "
# A call that waits takes some 80 KB.
_MAX_CALLS = 4096
_MAX_CALLS_OF_ONE = 1024
_TAKE_S = 60.0


class Edge:
    """Runs handlers for verified callers."""

    def __init__(self, issuer: Issuer) -> None:
        self._issuer = issuer
        self._running: Counter[str] = Counter()  # calls by caller

    async def serve(self, handler: Handler[Q, A], request: Q, context: Context) -> A:
        """Run a handler; its errors become the call's status."""
        return await self._run(lambda caller: handler(caller, request), request, context)

    async def stream(self, handler: StreamHandler[Q, A], request: Q, context: Context) -> None:
        """Run a handler that sends many answers, until it raises or the caller goes away.

        A token that ends meanwhile ends the stream with its next answer, and so does a caller that
        takes nothing for a minute: it has its place for others then.
        """

        async def send(answer: A) -> None:
            self._caller(context)
            try:
                async with asyncio.timeout(_TAKE_S):
                    await context.write(answer)
            except TimeoutError as error:
                raise Unavailable("nobody took an answer for a minute; call again") from error

        await self._run(lambda caller: handler(caller, request, send), request, context)

    async def _run(
        self, work: Callable[[Caller], Awaitable[T]], request: Message, context: Context
    ) -> T:
        try:
            caller = self._caller(context)
            _refuse_unsound(request)
            with self._counted(caller):
                return await work(caller)
        except StoreUnavailable as error:
            logger.warning("call failed", extra={"error": error.message})
            await _abort(context, Unavailable("the database does not answer; try again"))
        except BcdError as error:
            if error.reason is not Reason.INTERNAL:
                await _abort(context, error)
            logger.error("call failed", extra={"error": error.message})
            await _abort(context, _internal())
        except Exception:
            logger.exception("call failed")
            await _abort(context, _internal())

    @contextmanager
    def _counted(self, caller: Caller) -> Iterator[None]:
        """Strangers never get here: they cannot take the callers' places."""
        own = self._running[caller.identity]
        if own >= _MAX_CALLS_OF_ONE or self._running.total() >= _MAX_CALLS:
            raise Unavailable("too many calls at once; try again")
        self._running[caller.identity] += 1
        try:
            yield
        finally:
            self._running[caller.identity] -= 1
            if not self._running[caller.identity]:
                del self._running[caller.identity]

    def _caller(self, context: Context) -> Caller:
        for key, value in context.invocation_metadata() or ():
            if key == "authorization" and isinstance(value, str) and value.startswith(_BEARER):
                return self._issuer.caller_of(value.removeprefix(_BEARER))
        raise Unauthenticated("the call carries no bearer token; get one and set it")


def _refuse_unsound(request: Message) -> None:
    unknown = unknown_field(request)
    if unknown is not None:
        raise InvalidInput(unknown, "is not a known field")
    unsound = text_with_nul(request)
    if unsound is not None:
        raise InvalidInput(unsound, "must not have a NUL character")


def _internal() -> BcdError:
    """All that a caller learns of what broke here."""
    return BcdError("internal error; the server's log has the cause")


async def _abort(context: Context, error: BcdError) -> NoReturn:
    """End the call; what the caller sent may stand in the error, and be shown by others as it is.

    An id that is not known is quoted, whatever it is.
    """
    error.message = _fit(error.message)
    error.details = {name: _fit(value) for name, value in error.details.items()}
    await context.abort_with_status(encode_error(error))
    raise AssertionError("abort returns never")


def _fit(text: str) -> str:
    return printable(text, len(text))


def require_admin(caller: Caller) -> None:
    """Raises AccessDenied unless the caller administers the installation."""
    if not caller.admin:
        raise AccessDenied("only an administrator may do this; use an administrator's token")
