"""A strict reader of Prometheus' text format: what it does not know it refuses.

Own, and stricter than a scraper: one help and one type before a family's samples, families never
interleaved, no sample twice, buckets cumulative up to ``+Inf``, which equals the count.
"""

import math
import re
from dataclasses import dataclass, field

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_COMMENT = re.compile(rf"# (HELP|TYPE) ({_NAME}) (.*)\Z")
_SAMPLE = re.compile(rf"({_NAME})(?:\{{(.*)\}})? (\S+)\Z")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\[\\"n])*)"(,|\Z)')
_NUMBER = re.compile(r"(?:[+-]Inf|-?[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)\Z")

Labels = frozenset[tuple[str, str]]


@dataclass
class Read:
    """One family as it was read; ``samples`` by full name and labels."""

    kind: str
    help: str
    samples: dict[tuple[str, Labels], float] = field(default_factory=dict)

    def value(self, suffix: str = "", **labels: str) -> float:
        """The one sample with exactly these labels; ``class_`` stands for ``class``."""
        wanted = frozenset((key.rstrip("_"), value) for key, value in labels.items())
        [found] = [
            value
            for (name, given), value in self.samples.items()
            if given == wanted and name.endswith(suffix)
        ]
        return found


def read(text: str) -> dict[str, Read]:
    """The families by name; raises AssertionError for anything that the format does not allow."""
    assert text.endswith("\n")
    families: dict[str, Read] = {}
    name, help_ = "", None
    for line in text.removesuffix("\n").split("\n"):
        comment = _COMMENT.match(line)
        if comment is None:
            assert name in families, f"sample before its type: {line}"
            _take(families[name], name, line)
        elif comment[1] == "HELP":
            name, help_ = comment[2], _plain(comment[3])
            assert name not in families, f"{name} comes twice"
        else:
            assert comment[2] == name, line
            assert comment[3] in ("counter", "gauge", "histogram"), line
            assert help_ is not None, f"type before help: {line}"
            families[name], help_ = Read(comment[3], help_), None
    for name, family in families.items():
        _check(name, family)
    return families


def _take(family: Read, name: str, line: str) -> None:
    sample = _SAMPLE.match(line)
    assert sample is not None, line
    suffixes = ("_bucket", "_sum", "_count") if family.kind == "histogram" else ("",)
    assert sample[1] in [name + suffix for suffix in suffixes], line
    assert _NUMBER.match(sample[3]), line
    key = (sample[1], _labels(sample[2] or ""))
    assert key not in family.samples, f"comes twice: {line}"
    family.samples[key] = float(sample[3])


def _labels(text: str) -> Labels:
    found: dict[str, str] = {}
    position = 0
    while position < len(text):
        label = _LABEL.match(text, position)
        assert label is not None, text
        assert label[1] not in found, text
        found[label[1]] = _plain(label[2])
        position = label.end()
        assert label[3] or position == len(text), text
    return frozenset(found.items())


def _plain(text: str) -> str:
    return re.sub(r"\\(.)", lambda match: {"n": "\n"}.get(match[1], match[1]), text)


def _check(name: str, family: Read) -> None:
    if family.kind == "counter":
        assert name.endswith("_total"), name
        assert all(value >= 0 for value in family.samples.values()), name
    if family.kind != "histogram":
        return
    buckets = sorted(
        (float(dict(labels)["le"]), value)
        for (sample, labels), value in family.samples.items()
        if sample.endswith("_bucket")
    )
    counts = [count for _, count in buckets]
    assert counts == sorted(counts), f"{name} is not cumulative"
    assert buckets[-1] == (math.inf, family.value("_count")), name
    assert family.value("_sum") >= 0
