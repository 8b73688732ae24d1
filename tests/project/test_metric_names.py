"""docs/metrics.md, the dashboard, the alert rules and a running server speak of the same series."""

import re
import urllib.request
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from tests.project.repository import ROOT, dashboard, rules

LATER = "## Not exported yet"
ROW = re.compile(r"^\| `(plait_\w+)` \| (counter|gauge|histogram) \| (.*?) \| (.+) \|$", re.MULTILINE)
USED = re.compile(r"\b(plait_[a-z0-9_]+)(?:\{([^}]*)\})?")
SUFFIXES = ("_bucket", "_sum", "_count")


@dataclass(frozen=True)
class Metric:
    name: str
    type: str
    labels: frozenset[str]
    later: bool


def documented() -> dict[str, Metric]:
    page = (ROOT / "docs/metrics.md").read_text()
    now, later = page.split(LATER)
    found = {}
    for text, is_later in ((now, False), (later, True)):
        for name, kind, labels, _ in ROW.findall(text):
            assert name not in found, f"{name} is documented twice"
            found[name] = Metric(name, kind, frozenset(re.findall(r"`(\w+)`", labels)), is_later)
    return found


def base_name(name: str, metrics: dict[str, Metric]) -> str:
    for suffix in SUFFIXES:
        stem = name.removesuffix(suffix)
        if stem != name and metrics.get(stem) and metrics[stem].type == "histogram":
            return stem
    return name


def queries() -> list[str]:
    panels = [target["expr"] for panel in dashboard()["panels"] for target in panel.get("targets", ())]
    variables = [v["definition"] for v in dashboard()["templating"]["list"] if "definition" in v]
    return panels + variables + [rule["expr"] for rule in rules()]


def test_the_page_lists_every_row_in_the_form_that_is_checked() -> None:
    page = (ROOT / "docs/metrics.md").read_text()
    assert len(documented()) == len(re.findall(r"^\| `plait_", page, re.MULTILINE)) > 20


def test_types_and_names_go_together() -> None:
    for metric in documented().values():
        assert (metric.type == "counter") == metric.name.endswith("_total"), metric.name
        assert metric.type != "histogram" or metric.name.endswith(("_seconds", "_tokens")), metric.name


def test_queries_use_only_documented_series_and_labels() -> None:
    metrics = documented()
    for query in queries():
        for name, matchers in USED.findall(query):
            stem = base_name(name, metrics)
            assert stem in metrics, f"{name} is not in docs/metrics.md: {query}"
            assert (metrics[stem].type == "histogram") == (stem != name), f"{name} is no series of its own: {query}"
            labels = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers)) - {"instance", "job"}
            assert labels <= metrics[stem].labels, f"{name} has no labels {labels - metrics[stem].labels}: {query}"


def test_counters_are_never_shown_raw() -> None:
    metrics = documented()
    for query in queries():
        for match in USED.finditer(query):
            name = match.group(1)
            if metrics[base_name(name, metrics)].type != "gauge":
                before = query[: match.start()]
                assert re.search(r"(rate|increase)\($", before), f"{name} without rate or increase: {query}"


def test_values_of_labels_in_queries_are_explained_on_the_page() -> None:
    page = (ROOT / "docs/metrics.md").read_text()
    for query in queries():
        for values in re.findall(r'(?:state|reason|use|phase|outcome|result)=~?"([^"]+)"', query):
            for value in values.split("|"):
                assert f"`{value}`" in page, f"{value!r} of {query} is not on the page"


def test_headline_series_are_documented_and_come_first_on_the_dashboard() -> None:
    headline = [p for p in dashboard()["panels"] if p["type"] == "stat"][:3]
    text = " ".join(target["expr"] for panel in headline for target in panel["targets"])
    assert "plait_prefix_hit_tokens_total" in text
    assert "plait_prefix_effective_hit_tokens_total" in text
    assert "plait_state_restore_failures_total" in text


def test_server_exports_exactly_what_the_page_lists(served: str) -> None:
    with urllib.request.urlopen(f"{served}/metrics", timeout=10) as response:
        families = list(text_string_to_metric_families(response.read().decode()))
    exported = {f.name + ("_total" if f.type == "counter" else ""): f for f in families if f.name.startswith("plait_")}
    metrics = documented()
    now = {metric.name for metric in metrics.values() if not metric.later}
    assert exported.keys() - now == set(), "exported, but not on the page as exported"
    assert now - exported.keys() == set(), "on the page, but not exported"
    for name, family in exported.items():
        assert family.type == metrics[name].type, name
        assert family.documentation, f"{name} has no help text"
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == metrics[name].labels, name
