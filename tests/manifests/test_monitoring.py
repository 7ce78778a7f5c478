"""Alerts and dashboards name existing metrics; alerts fire when they should, and not else."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry
from support.manifests import MANIFESTS, chart, of_kind

from batholith.admission.serving.handler import AdmissionHandler
from batholith.admission.serving.object_reader import InformerReader
from batholith.api.history.metrics import NotificationMetrics, RecorderMetrics
from batholith.api.http.metrics import ApiMetrics
from batholith.api.streams.metrics import StreamMetrics
from batholith.batch_ctrl.metrics import BatchJobMetrics
from batholith.cli.manager import Telemetry
from batholith.flow_ctrl.metrics import FlowMetrics
from batholith.job_ctrl.metrics import JobMetrics
from batholith.kube.client.client import Client
from batholith.kube.client.config import Credentials
from batholith.machinery.leader_election import LeaderElectionMetrics
from batholith.machinery.metrics import WorkQueueMetrics
from batholith.machinery.serving_certificate import ServingCertificate
from batholith.machinery.shard_leases import ShardMetrics
from batholith.machinery.testing import FakeClock
from batholith.queue_ctrl.metrics import QueueMetrics
from batholith.scheduler.metrics import ReloadMetrics, SchedulerMetrics
from batholith.training_ctrl.metrics import TrainingMetrics

Json = dict[str, Any]

COMPONENT = MANIFESTS / "components/monitoring"
UNIT_TESTS = Path(__file__).with_name("alerts.test.yaml")
RUNBOOKS = MANIFESTS.parent / "docs/runbooks.md"
PROMETHEUS_OWN = {"up"}
"""Metrics that Prometheus itself adds to each target."""
KEYWORDS = {"and", "by", "offset", "on", "or", "unless"}
SUFFIXES = {
    "counter": ("_total",),
    "histogram": ("_bucket", "_sum", "_count"),
    "info": ("_info",),
}
"""Suffixes of the samples of a family, by its type."""


def needs_promtool() -> str:
    """Skip without promtool; fail instead where ``BATHOLITH_REQUIRE`` demands it."""
    found = shutil.which("promtool")
    if found is None:
        if "promtool" in os.environ.get("BATHOLITH_REQUIRE", "").split(","):
            pytest.fail("promtool is required and not installed: Debian's package prometheus")
        pytest.skip("promtool is not installed: it is in Debian's package prometheus")
    return found


def promtool(*arguments: str, directory: Path) -> None:
    """Run promtool, which must succeed."""
    command = [needs_promtool(), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=directory, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def rule_groups() -> Json:
    (rule,) = yaml.safe_load_all((COMPONENT / "alerts.yaml").read_text())
    return dict(rule["spec"])


def alerts() -> dict[str, Json]:
    return {rule["alert"]: rule for group in rule_groups()["groups"] for rule in group["rules"]}


def dashboards() -> dict[str, Json]:
    """The dashboards by file name."""
    maps = yaml.safe_load_all((COMPONENT / "dashboards.yaml").read_text())
    return {name: json.loads(text) for each in maps for name, text in each["data"].items()}


def panels(dashboard: Json) -> list[Json]:
    return [each for each in dashboard["panels"] if each["type"] != "row"]


def named_metrics(expression: str) -> set[str]:
    """The metrics of a PromQL expression."""
    without_labels = re.sub(r'"(\\.|[^"])*"', "", expression)
    without_labels = re.sub(r"\{[^}]*\}|\[[^]]*\]", "", without_labels)
    without_labels = re.sub(r"\b(by|on|without|ignoring) *\([^)]*\)", "", without_labels)
    names = re.findall(r"\b([a-z_][a-z0-9_]*)\b(?! *\()", without_labels)
    return {name for name in names if name not in KEYWORDS and not re.fullmatch(r"[mhs]", name)}


def exported_metrics() -> set[str]:
    """Names of the samples that the components export."""
    registry, clock = Telemetry().registry, FakeClock()
    client = Client(Credentials(server="http://127.0.0.1:1"), user_agent="test")
    AdmissionHandler((), InformerReader(client, ()), registry=registry)
    for collected in (
        ApiMetrics,
        BatchJobMetrics,
        FlowMetrics,
        JobMetrics,
        LeaderElectionMetrics,
        NotificationMetrics,
        QueueMetrics,
        RecorderMetrics,
        ShardMetrics,
        TrainingMetrics,
        WorkQueueMetrics,
    ):
        collected(registry)
    SchedulerMetrics(registry, clock=clock)
    ReloadMetrics(registry, clock=clock)
    return {*_sample_names(registry, StreamMetrics(), ServingCertificate())}


def _sample_names(registry: CollectorRegistry, *collectors: Any) -> Iterator[str]:
    for collector in collectors:
        registry.register(collector)
    for family in registry.collect():
        for suffix in SUFFIXES.get(family.type, ("",)):
            yield family.name + suffix


def queries() -> Iterator[tuple[str, str]]:
    """Alert or panel, and its expression."""
    for name, rule in alerts().items():
        yield name, rule["expr"]
    for file, dashboard in dashboards().items():
        for panel in panels(dashboard):
            for target in panel["targets"]:
                yield f"{file}: {panel['title']}", target["expr"]
        for variable in dashboard["templating"]["list"]:
            if variable["type"] == "query":
                found = re.fullmatch(r"label_values\((\w+), \w+\)", variable["query"]["query"])
                assert found, variable
                yield f"{file}: {variable['name']}", found[1]


def test_metrics_of_an_expression_are_found() -> None:
    text = 'sum by (a) (rate(b_total{c=~"d"}[5m])) / max(e unless on (f) g offset 1h) > 0.5'
    assert named_metrics(text) == {"b_total", "e", "g"}


def test_alerts_and_dashboards_name_exported_metrics() -> None:
    known = exported_metrics() | PROMETHEUS_OWN
    unknown = {
        where: missing
        for where, expression in queries()
        if (missing := named_metrics(expression) - known)
    }
    assert unknown == {}
    assert all(named_metrics(expression) for _, expression in queries())


def test_alerts_fire_when_they_should(tmp_path: Path) -> None:
    needs_promtool()
    (tmp_path / "alerts.yaml").write_text(yaml.safe_dump(rule_groups()))
    shutil.copy(UNIT_TESTS, tmp_path)
    promtool("check", "rules", "alerts.yaml", directory=tmp_path)
    promtool("test", "rules", UNIT_TESTS.name, directory=tmp_path)


def test_expressions_of_dashboards_are_valid(tmp_path: Path) -> None:
    needs_promtool()
    rules = [
        {"record": f"panel:{number}", "expr": expression}
        for number, (_, expression) in enumerate(queries())
    ]
    groups = {"groups": [{"name": "panels", "rules": rules}]}
    (tmp_path / "panels.yaml").write_text(yaml.safe_dump(groups))
    promtool("check", "rules", "panels.yaml", directory=tmp_path)


def test_each_alert_is_tested_to_fire_and_not_to_fire() -> None:
    outcomes: dict[str, set[bool]] = {name: set() for name in alerts()}
    for test in yaml.safe_load(UNIT_TESTS.read_text())["tests"]:
        for check in test["alert_rule_test"]:
            outcomes[check["alertname"]].add(bool(check["exp_alerts"]))
    assert {name for name, found in outcomes.items() if found != {True, False}} == set()


def test_each_alert_links_to_its_runbook() -> None:
    headings = re.findall(r"^## (Batholith\w+)$", RUNBOOKS.read_text(), flags=re.MULTILINE)
    assert headings == list(alerts())
    for name, rule in alerts().items():
        assert rule["annotations"]["runbook_url"] == f"docs/runbooks.md#{name.lower()}"
        assert rule["labels"]["severity"] in ("critical", "warning", "info")


def _covered(panel: Json) -> Iterable[tuple[int, int]]:
    position = panel["gridPos"]
    for x in range(position["x"], position["x"] + position["w"]):
        for y in range(position["y"], position["y"] + position["h"]):
            yield x, y


@pytest.mark.parametrize("file", dashboards())
def test_panels_are_distinct_and_use_defined_variables(file: str) -> None:
    dashboard = dashboards()[file]
    every = dashboard["panels"]
    assert len({each["id"] for each in every}) == len(every)
    cells = [cell for each in every for cell in _covered(each)]
    assert len(set(cells)) == len(cells)
    defined = {each["name"] for each in dashboard["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(dashboard))) - {"__all"}
    assert used == defined


def test_the_chart_links_alerts_to_the_configured_runbooks() -> None:
    found = chart("monitoring.enabled=true", "monitoring.runbookUrl=https://wiki.test/runbooks")
    (rule,) = of_kind(found, "PrometheusRule").values()
    links = [
        each["annotations"]["runbook_url"]
        for group in rule["spec"]["groups"]
        for each in group["rules"]
    ]
    assert links[0] == "https://wiki.test/runbooks#batholithcomponentdown"
    assert all(link.startswith("https://wiki.test/runbooks#") for link in links)


def test_alerts_and_dashboards_can_be_left_out_of_the_chart() -> None:
    values = ("monitoring.enabled=true", "monitoring.rules=false", "monitoring.dashboards=false")
    found = chart(*values)
    assert of_kind(found, "ServiceMonitor")
    assert not of_kind(found, "PrometheusRule")
    assert not [name for name in of_kind(found, "ConfigMap") if name.endswith("-dashboard")]
