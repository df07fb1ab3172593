"""What another program said, made fit for a terminal, a log line or a status document; and counts.

Peers are not trusted with escape sequences and line breaks; whoever takes a text from one puts it
through here before it is kept or shown.
"""


def printable(text: str, limit: int = 512) -> str:
    """One line of at most ``limit`` characters; what cannot be printed shows as U+FFFD."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text[:limit])


def counted(number: int, noun: str) -> str:
    """``1 check``, ``2 checks``; for nouns whose plural ends in s."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
