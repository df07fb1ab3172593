"""What a person should look at on a host: one value, wherever in the daemon it was noticed."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NodeCondition:
    """Something that a person should look at; ``message`` says what to do."""

    type: str
    subject: str
    message: str
