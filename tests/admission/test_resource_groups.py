"""Resource groups: fields set on new pods by the admission configuration."""

import json
import re
from typing import Any

import pytest
from support.admission import admit

from batholith.admission import AdmissionSettings
from batholith.admission.resource_groups import ResourceGroupsError, parse

Json = dict[str, Any]

CONFIGURATION = b"""
resourceGroups:
- resourceGroup: management
  object: {key: namespace, value: [mng-ns-1]}
  schedulerName: default-scheduler
  labels: {volcano.sh/nodetype: management}
- resourceGroup: cpu
  object: {key: annotation, value: ["kind: cpu", "size: 5"]}
  schedulerName: volcano
  tolerations: [{effect: NoExecute, key: taint, operator: Exists, tolerationSeconds: 9}]
- resourceGroup: gpu
  affinity: '{"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {}}}'
- resourceGroup: odd
  object: {key: colour, value: [red]}
  schedulerName: never
"""
AFFINITY: Json = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {}}}


def completed(pod: Json) -> Json:
    spec: Json = admit(pod, settings=AdmissionSettings(resource_groups=parse(CONFIGURATION)))[
        "spec"
    ]
    return spec


def pod(namespace: str = "ns", annotations: Json | None = None, **spec: Any) -> Json:
    metadata = {"name": "p", "namespace": namespace, "annotations": annotations or {}}
    return {"kind": "Pod", "metadata": metadata, "spec": spec}


def test_pods_are_selected_by_namespace() -> None:
    given = completed(pod("mng-ns-1", schedulerName="volcano", nodeSelector={"zone": "a"}))
    assert given == {
        "schedulerName": "default-scheduler",
        "nodeSelector": {"zone": "a", "volcano.sh/nodetype": "management"},
    }


@pytest.mark.parametrize("annotations", [{"kind": "cpu"}, {"size": "5"}])
def test_quirk_a14_pods_are_selected_by_annotation_and_tolerations_are_appended(
    annotations: Json,
) -> None:
    theirs = {"key": "mine", "operator": "Exists"}
    given = completed(pod(annotations=annotations, tolerations=[theirs]))
    added = {"effect": "NoExecute", "key": "taint", "operator": "Exists", "tolerationSeconds": 9}
    assert given == {"schedulerName": "volcano", "tolerations": [theirs, added]}


def test_pods_are_selected_by_the_groups_name_by_default() -> None:
    assert completed(pod(annotations={"volcano.sh/resource-group": "gpu"})) == {
        "affinity": AFFINITY
    }


def test_an_existing_affinity_is_kept() -> None:
    mine: Json = {"podAffinity": {}}
    given = completed(pod(annotations={"volcano.sh/resource-group": "gpu"}, affinity=mine))
    assert given == {"affinity": mine}


@pytest.mark.parametrize(
    "annotations",
    [{}, {"kind": "gpu"}, {"volcano.sh/resource-group": "management"}, {"colour": "red"}],
)
def test_other_pods_are_not_changed(annotations: Json) -> None:
    assert completed(pod(annotations=annotations)) == {}


def test_the_first_matching_group_applies() -> None:
    given = completed(pod("mng-ns-1", annotations={"kind": "cpu"}))
    assert given["schedulerName"] == "default-scheduler"


@pytest.mark.parametrize("text", [b"", b"resourceGroups: []", b"other: 1"])
def test_a_file_may_contain_no_groups(text: bytes) -> None:
    assert parse(text) == ()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("resourceGroups: [", "resource groups"),
        ("[]", "resource groups"),
        ("resourceGroups: [{labels: []}]", "labels"),
        ("resourceGroups: [{resourceGroup: a, affinity: '{'}]", "resource group 'a'"),
        ("resourceGroups: [{resourceGroup: a, affinity: '[]'}]", "resource group 'a'"),
        ("resourceGroups: [{resourceGroup: a, object: {value: [text]}}]", "'text'"),
        (json.dumps({"resourceGroups": [{"object": {"value": ["a: [b]"]}}]}), "a: [b]"),
    ],
)
def test_errors_of_an_invalid_file_name_the_group(text: str, expected: str) -> None:
    with pytest.raises(ResourceGroupsError, match=re.escape(expected)):
        parse(text.encode())
