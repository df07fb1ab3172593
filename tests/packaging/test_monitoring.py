"""Alert rules and dashboard use what the daemon exports, and nothing else."""

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bcd.node.exposition import Family, Histogram, Kind
from bcd.node.metrics import BOUNDS_S, Measured, families

MONITORING = Path(__file__).parents[2] / "packaging/monitoring"
RULES = (MONITORING / "bcd-alerts.yaml").read_text()
DASHBOARD: dict[str, Any] = json.loads((MONITORING / "bcd-dashboard.json").read_text())
_METRIC = re.compile(r"\bbcd_[a-z_]+")
_SELECTOR = re.compile(r"\b(bcd_[a-z_]+)\{([^}]*)\}")
_FROM_SCRAPING = {"instance", "job", "le"}

MEASURED = Measured(
    version="1",
    node_id="node_1",
    driver_version="550",
    cuda_version="12",
    holds={"bound": 1},
    failures={"device-busy": 1},
    conditions={"PassFailed": 1},
    devices={("gpu", "healthy"): 1, ("gpu.mig", "unhealthy"): 2},
    counters={"passes": 3, "strange": 1},
    reports_waiting=0,
    connected=True,
    certificate_seconds_left=1.5,
    last_pass_seconds=1,
    passes=Histogram(BOUNDS_S, (0,) * (len(BOUNDS_S) + 1), 0.0),
)


def exported() -> dict[str, set[str]]:
    """Labels by name of every series that a daemon exports."""
    found: dict[str, set[str]] = {}
    for family in families(MEASURED):
        for sample in family.samples:
            found.setdefault(family.name + sample.suffix, set()).update(sample.labels)
    return found


def expressions() -> Iterator[str]:
    """Every expression of the dashboard and of the rules."""
    for panel in DASHBOARD["panels"]:
        yield from (target["expr"] for target in panel["targets"])
    for variable in DASHBOARD["templating"]["list"][1:]:
        yield variable["query"]["query"]
    yield from re.findall(r"^ +expr: (?:>-\n)?((?:.+\n)(?: {10}.+\n)*)", RULES, re.MULTILINE)


def test_every_metric_that_is_used_is_exported() -> None:
    used = {name for text in expressions() for name in _METRIC.findall(text)}
    assert used - set(exported()) == set()
    assert len(used) > 10


def test_every_label_that_is_asked_for_is_exported() -> None:
    known = exported()
    for text in expressions():
        for name, labels in _SELECTOR.findall(text):
            asked = set(re.findall(r"([a-z_]+)[=!]", labels))
            assert asked <= known[name] | _FROM_SCRAPING, text


def test_every_metric_is_on_the_dashboard() -> None:
    shown = " ".join(expressions())
    assert [f.name for f in families(MEASURED) if f.name not in shown] == []


def test_names_follow_the_conventions() -> None:
    def conventional(family: Family) -> bool:
        return family.name.endswith("_total") == (family.kind is Kind.COUNTER) and bool(family.help)

    assert all(map(conventional, families(MEASURED)))
    names = [family.name for family in families(MEASURED)]
    assert len(set(names)) == len(names)


def test_the_agent_asks_for_the_job_that_the_rules_name_where_the_settings_say() -> None:
    text = (MONITORING / "scrape.yaml").read_text()
    assert "job_name: bcd\n" in text
    assert 'up{job="bcd"}' in RULES
    (target,) = re.findall(r'targets: \["([^"]+)"\]', text)
    assert target in re.findall(r'listen = "([^"]+)"', text)
    assert target in (MONITORING.parent / "bcd-full.toml").read_text()


def test_every_alert_says_what_it_is_and_what_to_do() -> None:
    alerts = RULES.split("- alert: ")[1:]
    assert len(alerts) >= 12
    for alert in alerts:
        for key in ("expr:", "severity:", "summary:", "description:"):
            assert key in alert, alert


def test_panels_have_ids_of_their_own_and_do_not_overlap() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for one, other in itertools.combinations([panel["gridPos"] for panel in panels], 2):
        apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert apart, (one, other)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)
