"""The Grafana dashboard: valid, laid out without gaps or overlaps, every panel explained, every query parses."""

import re
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from tests.project.repository import ROOT, dashboard, load_yaml, promtool

COLUMNS = 24
KNOWN_UNITS = {"short", "s", "bytes", "percentunit", "reqps", "ops"}


def test_panel_ids_are_unique() -> None:
    ids = [panel["id"] for panel in dashboard()["panels"]]
    assert len(ids) == len(set(ids))


def test_panels_fill_rows_without_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, f"{panel['title']} overlaps another panel"
        taken |= cells
    height = max(y for _, y in taken) + 1
    assert taken == {(x, y) for x in range(COLUMNS) for y in range(height)}, "there are holes"


def test_panels_come_in_reading_order() -> None:
    places = [(p["gridPos"]["y"], p["gridPos"]["x"]) for p in dashboard()["panels"]]
    assert all(before < after for before, after in pairwise(places))


def test_every_panel_says_what_it_shows_in_which_unit_from_which_source() -> None:
    for panel in dashboard()["panels"]:
        assert panel["title"]
        if panel["type"] == "row":
            continue
        assert len(panel["description"]) > 20, panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"] in KNOWN_UNITS, panel["title"]
        assert panel["datasource"]["uid"] == "${datasource}", panel["title"]
        assert panel["targets"], panel["title"]
        for target in panel["targets"]:
            assert target["datasource"]["uid"] == "${datasource}", panel["title"]
            assert target["legendFormat"], panel["title"]
        references = [target["refId"] for target in panel["targets"]]
        assert len(references) == len(set(references)), panel["title"]


def test_variables_are_used_and_defined() -> None:
    defined = {variable["name"] for variable in dashboard()["templating"]["list"]}
    assert defined == {"datasource", "instance"}
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            used = set(re.findall(r"\$\{?(\w+)", target["expr"])) - {"__rate_interval"}
            assert used == {"instance"}, f"{panel['title']}: {target['expr']}"


def test_every_query_parses(tmp_path: Path) -> None:
    tool = promtool()
    found = [
        {"record": f"panel_{panel['id']}:{target['refId']}",
         "expr": target["expr"].replace("$__rate_interval", "1m").replace("$instance", ".*")}
        for panel in dashboard()["panels"]
        for target in panel.get("targets", ())
    ]  # fmt: skip
    path = tmp_path / "queries.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": found}]}))
    result = subprocess.run([tool, "check", "rules", str(path)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"{len(found)} rules found" in result.stdout


@pytest.mark.parametrize("panel", ["Prefix hit rate", "Effective hit rate", "State-restore failures"])
def test_headline_panels_say_so_when_there_is_nothing_to_show(panel: str) -> None:
    (found,) = (p for p in dashboard()["panels"] if p["title"] == panel)
    assert found["fieldConfig"]["defaults"]["noValue"] == "not exported"


def test_provisioning_finds_prometheus_and_the_dashboard() -> None:
    services = load_yaml(ROOT / "deploy/compose.yaml")["services"]
    (source,) = load_yaml(ROOT / "grafana/provisioning/datasources/prometheus.yaml")["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert "127.0.0.1:9090:9090" in services["prometheus"]["ports"]
    (provider,) = load_yaml(ROOT / "grafana/provisioning/dashboards/plait.yaml")["providers"]
    mounts = dict(volume.split(":")[:2] for volume in services["grafana"]["volumes"])
    assert mounts["../grafana/dashboards"] == provider["options"]["path"]
    assert mounts["../grafana/provisioning"] == "/etc/grafana/provisioning"
    home = services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == f"{provider['options']['path']}/plait.json"


def test_data_source_and_prometheus_agree_on_the_interval() -> None:
    (source,) = load_yaml(ROOT / "grafana/provisioning/datasources/prometheus.yaml")["datasources"]
    interval = load_yaml(ROOT / "deploy/prometheus/prometheus.yaml")["global"]["scrape_interval"]
    assert source["jsonData"]["timeInterval"] == interval
