"""The table of races: how each begins, and one round of it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tests.placer.races.arena import Arena
from tests.placer.world import dgx

Part = Callable[[Arena], Awaitable[None]]


async def two_nodes(arena: Arena) -> None:
    """Two nodes of four GPUs each."""
    for name in "ab":
        await arena.world.add_node(dgx(name, 4))


@dataclass(frozen=True, slots=True)
class Race:
    """One round collides callers and says what of it is special; the rest is the driver's."""

    round: Part
    begin: Part = two_nodes

    @property
    def name(self) -> str:
        """The round's name, without underscores."""
        return self.round.__name__.replace("_", "-")
