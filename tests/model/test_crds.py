"""The custom resource definitions have Volcano's fields, and one of Batholith's own."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from support import crd_builder
from support.crd_fields import DIR, Facts, facts, fields, read_table, schema

from batholith.model import crds, names

KINDS: dict[str, Facts] = json.loads((DIR / "kinds.json").read_text())
BY_NAME = {crd["metadata"]["name"]: crd for crd in crds.load()}

LOOSE = [
    f"tasks[].template.spec.{field}"
    for field in (
        "containers[].envFrom[].configMapRef",
        "containers[].envFrom[].secretRef",
        "ephemeralContainers[].envFrom[].configMapRef",
        "ephemeralContainers[].envFrom[].secretRef",
        "initContainers[].envFrom[].configMapRef",
        "initContainers[].envFrom[].secretRef",
        "volumes[].configMap",
        "volumes[].projected.sources[].configMap",
        "volumes[].projected.sources[].secret",
    )
]
"""Maps that Volcano calls atomic and Kubernetes does not: in a pod several appliers may own fields.

The same applies to pod templates in a job.
"""
PATCH = ".spec.flows[].patch.jobSpec"
JOB_SPECS = {
    "cronjobs.batch.volcano.sh": ".spec.jobTemplate.spec",
    "jobs.batch.volcano.sh": ".spec",
    "jobflows.flow.volcano.sh": PATCH,
    "jobtemplates.flow.volcano.sh": ".spec",
}
"""Where a definition has the spec of a job."""

OWN_CONDITION_FIELDS: dict[str, Facts] = {
    "message": {"type": "string"},
    "passedProbes": {"type": "array"},
    "passedProbes[]": {"type": "string"},
    "reason": {"type": "string"},
}


def test_there_is_one_definition_for_each_kind() -> None:
    assert sorted(BY_NAME) == sorted(KINDS)
    for resource in (
        names.COMMANDS,
        names.CRONJOBS,
        names.HYPERNODES,
        names.JOBFLOWS,
        names.JOBS,
        names.JOBTEMPLATES,
        names.PODGROUPS,
        names.QUEUES,
    ):
        spec = BY_NAME[f"{resource.plural}.{resource.group}"]["spec"]
        assert spec["names"]["kind"] == resource.kind
        assert [version["name"] for version in spec["versions"]] == [resource.version]
        assert (spec["scope"] == "Namespaced") is resource.namespaced


@pytest.mark.parametrize("name", KINDS)
def test_each_field_is_as_in_volcano(name: str) -> None:
    theirs = read_table(name)
    if root := JOB_SPECS.get(name):
        theirs[f"{root}.suspend"] = {"type": "boolean"}
        for path in LOOSE:
            assert theirs[f"{root}.{path}"].pop("x-kubernetes-map-type") == "atomic"
    if root == PATCH:
        own = {f".status.conditions{{}}.{key}": each for key, each in OWN_CONDITION_FIELDS.items()}
        theirs = {path: _of_patch(path, each) for path, each in theirs.items()} | own
    assert dict(fields(schema(BY_NAME[name]))) == theirs


def _of_patch(path: str, limits: Facts) -> Facts:
    """Volcano has the defaults and required fields of a job in patches, which then set them."""
    left_out = ("default", "required", "x-kubernetes-list-map-keys", "x-kubernetes-list-type")
    kept = {keyword: value for keyword, value in limits.items() if keyword not in left_out}
    return kept if path.startswith(PATCH) else limits


@pytest.mark.parametrize("name", KINDS)
def test_names_scope_versions_columns_and_subresources_are_as_in_volcano(name: str) -> None:
    assert facts(BY_NAME[name]) == KINDS[name]


def test_podgroup_has_no_status_subresource() -> None:
    (version,) = BY_NAME["podgroups.scheduling.volcano.sh"]["spec"]["versions"]
    assert "subresources" not in version


def test_definitions_equal_the_yaml_files_with_kubernetes_types_inserted() -> None:
    described = crd_builder.sources()
    assert [list(marked(each)) for each in described] == [
        [
            ("volumeClaim", "PersistentVolumeClaimSpec"),
            ("template", "PodTemplateSpec"),
        ],
        [],
        [],
        [],
        [
            ("metadata", "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"),
            ("volumeClaim", "PersistentVolumeClaimSpec"),
            ("template", "PodTemplateSpec"),
        ],
        [
            ("volumeClaim", "PersistentVolumeClaimSpec.patch"),
            ("template", "PodTemplateSpec.patch"),
        ],
        [
            ("volumeClaim", "PersistentVolumeClaimSpec"),
            ("template", "PodTemplateSpec"),
        ],
        [],
    ]
    for one, other in zip(described, crds.load(), strict=True):
        assert without_types(one) == without_types(other)


def marked(node: Any) -> Iterator[tuple[str, str]]:
    """Return the fields that have a Kubernetes type."""
    if isinstance(node, list):
        for each in node:
            yield from marked(each)
    if isinstance(node, dict):
        for key, value in node.items():
            if isinstance(value, dict) and crds.TYPE_PLACEHOLDER in value:
                yield key, value[crds.TYPE_PLACEHOLDER]
            yield from marked(value)


def without_types(node: Any) -> Any:
    """The same with nothing but the prose of the fields whose type is defined elsewhere."""
    if isinstance(node, list):
        return [without_types(each) for each in node]
    if not isinstance(node, dict):
        return node
    return {
        key: {"description": value["description"]}
        if key in ("template", "volumeClaim", "jobTemplate")
        else without_types(value)
        for key, value in node.items()
    }


def test_load_returns_new_objects() -> None:
    first = crds.load()[0]
    first["spec"]["versions"][0]["schema"].clear()
    assert crds.load()[0]["spec"]["versions"][0]["schema"]
