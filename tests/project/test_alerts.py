"""The alert rules: they parse, fire when they should, stay quiet when not, and are on the deployment page."""

import subprocess
from pathlib import Path

from tests.project.repository import ROOT, load_yaml, promtool, rules

CONFIG = ROOT / "deploy/prometheus/prometheus.yaml"
CASES = Path(__file__).with_name("alerts_test.yaml")


def test_prometheus_accepts_its_configuration_and_the_rules() -> None:
    result = subprocess.run([promtool(), "check", "config", str(CONFIG)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"{len(rules())} rules found" in result.stdout


def test_alerts_fire_on_made_up_series_and_only_there() -> None:
    result = subprocess.run([promtool(), "test", "rules", str(CASES)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_alert_has_a_case_that_fires_and_one_that_does_not() -> None:
    for alert in (rule["alert"] for rule in rules()):
        expected = {bool(case.get("exp_alerts")) for test in load_yaml(CASES)["tests"]
                    for case in test["alert_rule_test"] if case["alertname"] == alert}  # fmt: skip
        assert expected == {True, False}, alert


def test_every_alert_has_a_severity_and_says_what_to_do_and_is_documented() -> None:
    page = (ROOT / "docs/deployment.md").read_text()
    for rule in rules():
        assert rule["labels"]["severity"] in {"warning", "critical"}
        assert {"summary", "description"} <= rule["annotations"].keys()
        assert rule["for"]
        assert f"| {rule['alert']} |" in page


def test_rules_expect_the_job_that_prometheus_scrapes() -> None:
    (job,) = load_yaml(CONFIG)["scrape_configs"]
    assert job["job_name"] == "plait"
    assert job["static_configs"] == [{"targets": ["plait:8000"]}]
    assert "plait" in load_yaml(ROOT / "deploy/compose.yaml")["services"]
