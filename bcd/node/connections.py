"""The open connections of one of the daemon's servers: one question and one answer each.

Whoever may connect may also keep a connection open and say nothing. So a question has to come
within a second, and where there are too many the one that has waited longest goes, not the newest.
"""

import asyncio
from collections.abc import Awaitable, Callable

MAX_CONNECTIONS = 16
_QUESTION_S = 1.0
_ANSWER_S = 5.0

Answer = Callable[[asyncio.StreamReader], Awaitable[bytes]]


class Connections:
    """Answers each connection with what ``answer`` makes of it, and closes it."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        # The oldest first; True once its question was read.
        self._open: dict[asyncio.Task[None], bool] = {}

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take a connection; for ``asyncio.start_server``, which then makes no task of its own."""
        if len(self._open) >= MAX_CONNECTIONS:
            unread = (task for task, read in self._open.items() if not read)
            oldest = next(unread, next(iter(self._open)))
            del self._open[oldest]
            oldest.cancel()
        task = asyncio.get_running_loop().create_task(self._converse(reader, writer))
        self._open[task] = False
        task.add_done_callback(lambda done: self._forget(done, writer))

    def _forget(self, task: asyncio.Task[None], writer: asyncio.StreamWriter) -> None:
        # Not in the task, which may have been cancelled before its first step. An answer that was
        # taken is out by now, and a reader that never reads must not keep its connection.
        self._open.pop(task, None)
        writer.transport.abort()

    async def close(self) -> None:
        """Cut off what is open."""
        left = list(self._open)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_QUESTION_S):
                answer = await self._answer(reader)
            task = asyncio.current_task()
            if task in self._open:
                self._open[task] = True
            async with asyncio.timeout(_ANSWER_S):
                writer.write(answer)
                writer.close()
                await writer.wait_closed()
        except (OSError, ValueError, TimeoutError):
            pass  # it left, or asked nothing that can be answered
