"""Who calls the API, as the bearer token says (spec 15.4)."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The identity is issuer, subject and acting subject; the owner of what it makes, the subject.

    ``actor`` is the agent of a delegated session, empty otherwise.
    """

    issuer: str
    subject: str
    actor: str = ""
    tenants: frozenset[str]
    groups: frozenset[str] = frozenset()
    admin: bool = False

    @property
    def owner(self) -> str:
        """The identity that owns what this caller creates."""
        return f"{self.issuer}|{self.subject}"

    @property
    def identity(self) -> str:
        """Issuer, subject and actor; an idempotency key belongs to this."""
        return f"{self.owner}|{self.actor}"


def is_owner(text: str) -> bool:
    """Whether somebody can be the owner that ``text`` names: ``issuer|subject``, neither empty."""
    issuer, _, subject = text.partition("|")
    return bool(issuer and subject)
