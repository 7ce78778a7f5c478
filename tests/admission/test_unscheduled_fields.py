"""Warnings about fields that the scheduler does not act on."""

from typing import Any

import pytest
from support.admission import ObjectReaderStub, hypernode, job, member

from batholith.admission import WEBHOOKS
from batholith.model import unscheduled_fields
from batholith.model.admission import AdmissionRequest

Json = dict[str, Any]

HARD = {"mode": "hard"}
WHOLE_CPU = {
    "spec": {"containers": [{"name": "c", "image": "x", "resources": {"requests": {"cpu": "1"}}}]}
}
PARTITIONS = {"totalPartitions": 2, "partitionSize": 2}
BY_ROLE = {"name": "a", "labelSelector": {}, "matchLabelKeys": ["role"]}


def warnings(kind: str, new: Json, *stored: Json, old: Json | None = None) -> list[str]:
    """Return the warnings of a write of *new*, with *stored* objects."""
    operation = "CREATE" if old is None else "UPDATE"
    request = AdmissionRequest(
        operation=operation, namespace="ns", name="x", object=new, old_object=old
    )
    found = [each.warn for each in WEBHOOKS if each.warn and each.resource.kind == kind]
    return [text for warn in found for text in warn(request, ObjectReaderStub(*stored))]


def of_kind(kind: str, spec: Json) -> Json:
    """Return an object of *kind* with the fields of *spec*; of a CronJob in its Job template."""
    if kind != "CronJob":
        return {"metadata": {"name": "x"}, "spec": spec}
    whole = job()["spec"] | spec
    return {"metadata": {"name": "x"}, "spec": {"jobTemplate": {"spec": whole}}}


def tasks(**fields: Any) -> Json:
    return {"tasks": [job()["spec"]["tasks"][0] | fields]}


@pytest.mark.parametrize("kind", ["Job", "CronJob"])
@pytest.mark.parametrize(
    ("spec", "path"),
    [
        (tasks(topologyPolicy="best-effort", template=WHOLE_CPU), "tasks[0].topologyPolicy"),
    ],
)
def test_jobs_and_their_templates_warn_of_each_field_that_the_scheduler_ignores(
    kind: str, spec: Json, path: str
) -> None:
    (text,) = warnings(kind, of_kind(kind, spec))
    at = "spec" if kind == "Job" else "spec.jobTemplate.spec"
    assert text.startswith(f"{at}.{path} has no effect on scheduling: ")


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"subGroupPolicy": [{"name": "a"}]}, "spec.subGroupPolicy[0]"),
        ({"subGroupPolicy": [BY_ROLE, {"labelSelector": {}}]}, "spec.subGroupPolicy[1]"),
    ],
)
def test_podgroups_warn_of_each_field_that_the_scheduler_ignores(spec: Json, path: str) -> None:
    (text,) = warnings("PodGroup", of_kind("PodGroup", spec))
    assert text.startswith(f"{path} has no effect on scheduling: ")


@pytest.mark.parametrize("kind", ["Job", "CronJob", "PodGroup"])
def test_objects_without_such_fields_cause_no_warning(kind: str) -> None:
    spec = {"minMember": 1, "subGroupPolicy": [BY_ROLE]}
    if kind != "PodGroup":
        spec = tasks(topologyPolicy="none", replicas=4, partitionPolicy=PARTITIONS)
    assert warnings(kind, of_kind(kind, spec)) == []


def test_an_update_warns_only_of_fields_that_it_adds() -> None:
    aligned = tasks(topologyPolicy="restricted", template=WHOLE_CPU)
    old = of_kind("Job", aligned)
    assert warnings("Job", old, old=old) == []
    new = of_kind("Job", {"tasks": [*aligned["tasks"], aligned["tasks"][0] | {"name": "other"}]})
    (text,) = warnings("Job", new, old=old)
    assert "tasks[1].topologyPolicy" in text


@pytest.mark.parametrize("kind", ["Job", "PodGroup"])
def test_a_topology_causes_a_warning_only_where_nothing_is_known_about_the_network(
    kind: str,
) -> None:
    new = of_kind(kind, {"networkTopology": HARD})
    (text,) = warnings(kind, new)
    assert text.startswith("spec.networkTopology has no effect as long as there are no HyperNodes")
    assert warnings(kind, new, hypernode("rack", member("node-0"))) == []


@pytest.mark.parametrize("spec", [None, [], {"tasks": 7}, {"tasks": ["x", {}]}])
def test_malformed_specs_have_no_such_fields(spec: Any) -> None:
    assert list(unscheduled_fields.of_job(spec, "spec")) == []
    assert list(unscheduled_fields.of_podgroup(spec, "spec")) == []
