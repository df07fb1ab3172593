"""Prometheus' own tool judges the alert rules and a daemon's page of metrics."""

import shutil
import subprocess
from pathlib import Path

from bcd.node.exposition import exposition
from bcd.node.metrics import families
from tests.packaging.test_monitoring import MEASURED, MONITORING

HERE = Path(__file__).parent


def promtool(*words: str, stdin: str = "", cwd: Path = HERE) -> str:
    """Run promtool; what it says when it is content."""
    if shutil.which("promtool") is None:
        raise RuntimeError("promtool is not installed: run apt-get install -y prometheus")
    done = subprocess.run(
        ["promtool", *words],
        input=stdin,
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_rules_are_sound() -> None:
    assert "16 rules found" in promtool("check", "rules", str(MONITORING / "bcd-alerts.yaml"))


def test_the_agents_settings_are_sound() -> None:
    said = promtool("check", "config", "--agent", str(MONITORING / "scrape.yaml"))
    assert "is valid prometheus config" in said


def test_each_fault_fires_its_alert_and_a_healthy_host_none(tmp_path: Path) -> None:
    shutil.copy(MONITORING / "bcd-alerts.yaml", tmp_path)
    shutil.copy(HERE / "alerts.yaml", tmp_path)
    assert "SUCCESS" in promtool("test", "rules", "alerts.yaml", cwd=tmp_path)


def test_a_page_of_metrics_is_taken_without_a_complaint() -> None:
    assert promtool("check", "metrics", stdin=exposition(families(MEASURED))) == ""
