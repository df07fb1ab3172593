"""Prometheus' text format, version 0.0.4: families of samples out, nothing in.

Written here because the daemon carries no library for it, and the format is three kinds of lines;
its document is "Exposition formats" of the Prometheus documentation. Pure; ``metrics`` calls it.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Kind(StrEnum):
    """What a family counts: only upwards, up and down, or into buckets."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Sample:
    """One value; ``suffix`` is a histogram's ``_bucket``, ``_sum`` or ``_count``."""

    value: float
    labels: Mapping[str, str] = field(default_factory=dict)
    suffix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """All samples of one name; a family without samples still says that it exists."""

    name: str
    kind: Kind
    help: str
    samples: tuple[Sample, ...]


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts of observations: ``counts[i]`` fell at or below ``bounds[i]``, the last above all."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float

    def samples(self) -> tuple[Sample, ...]:
        """Buckets as the format wants them: cumulative, ``+Inf`` last, then sum and count."""
        seen, found = 0, []
        for bound, count in zip((*self.bounds, math.inf), self.counts, strict=True):
            seen += count
            found.append(Sample(seen, {"le": _number(bound)}, "_bucket"))
        return (*found, Sample(self.total, suffix="_sum"), Sample(seen, suffix="_count"))


def exposition(families: Sequence[Family]) -> str:
    """The document: each family's help and type once, its samples below them."""
    return "".join(f"{line}\n" for family in families for line in _lines(family))


def _lines(family: Family) -> Iterator[str]:
    yield f"# HELP {family.name} {_escaped(family.help)}"
    yield f"# TYPE {family.name} {family.kind}"
    for sample in family.samples:
        labels = ",".join(f'{name}="{_quoted(value)}"' for name, value in sample.labels.items())
        shown = f"{{{labels}}}" if labels else ""
        yield f"{family.name}{sample.suffix}{shown} {_number(sample.value)}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _quoted(text: str) -> str:
    # Half a surrogate pair has no UTF-8 form, which is all that a reader takes.
    return _escaped(text.encode(errors="replace").decode()).replace('"', r"\"")


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) else repr(float(value))
