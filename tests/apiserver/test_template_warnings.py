"""Pods, and objects with a template of pods, cause the warnings of kube-apiserver."""

import asyncio
from collections.abc import Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from support.api_servers import RealServerFactory
from support.batch_writes import TEMPLATES_WITH_WARNINGS
from support.embedded_apiserver import MERGE, Server, embedded_server

from batholith.model.names import (
    DAEMONSETS,
    DEPLOYMENTS,
    PODS,
    REPLICASETS,
    STATEFULSETS,
    Resource,
)

Json = dict[str, Any]
pytestmark = pytest.mark.cluster

REPLICATION_CONTROLLERS = Resource("", "v1", "replicationcontrollers", "ReplicationController")
POD_TEMPLATES = Resource("", "v1", "podtemplates", "PodTemplate")
LABELS = {"a": "b"}
NAMES = ("plain", "with.dot", "l" * 64)
CLAIM: Json = {
    "metadata": {"name": "v"},
    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1500m"}}},
}
_ONLY_HERE = " in the embedded cluster"


def _workload(resource: Resource, template: Json) -> Json:
    template = deepcopy(template)
    if resource == PODS:
        return template
    template.setdefault("metadata", {})["labels"] = LABELS
    template["spec"]["restartPolicy"] = "Always"
    if resource == POD_TEMPLATES:
        return {"template": template}
    selector: Json = LABELS if resource == REPLICATION_CONTROLLERS else {"matchLabels": LABELS}
    spec: Json = {"template": template, "selector": selector}
    if resource == STATEFULSETS:
        spec |= {"serviceName": "s", "volumeClaimTemplates": [CLAIM]}
    return {"spec": spec}


def _changes(resource: Resource) -> Iterator[Json]:
    annotated = {"metadata": {"annotations": {"a": "b"}}}
    yield annotated
    if resource == PODS:
        yield {"spec": {"activeDeadlineSeconds": 5}}
        return
    if resource == POD_TEMPLATES:
        yield {"template": annotated}
        return
    yield {"spec": {"minReadySeconds": 3}}
    yield {"spec": {"template": annotated}}


RESOURCES = (
    DAEMONSETS, DEPLOYMENTS, POD_TEMPLATES, PODS, REPLICASETS, REPLICATION_CONTROLLERS,
    STATEFULSETS,
)  # fmt: skip


async def _warnings(
    server: Server, templates: Mapping[str, Json]
) -> dict[tuple[str, ...], list[str]]:
    """Write each template in each kind; return the warnings, without those of our own."""
    result: dict[tuple[str, ...], list[str]] = {}

    async def send(key: tuple[str, ...], method: str, path: str, body: Json) -> None:
        content_type = MERGE if method == "PATCH" else "application/json"
        response = await server.request(method, path, body, content_type=content_type)
        found = [each for each in response.warnings if _ONLY_HERE not in each]
        result[*key, str(response.status)] = found

    for resource in RESOURCES:
        path = resource.path("default")
        for number, (which, template) in enumerate(templates.items()):
            body = _workload(resource, template)
            body["metadata"] = {**body.get("metadata", {}), "name": f"w{number}"}
            await send((resource.kind, which), "POST", path, body)
            for change in _changes(resource):
                target = f"{path}/w{number}?dryRun=All"
                await send((resource.kind, which, str(change)), "PATCH", target, change)
        body = _workload(resource, templates["warned-env"])
        for name in NAMES:
            body["metadata"] = {**body.get("metadata", {}), "name": name}
            await send((resource.kind, name), "POST", f"{path}?dryRun=All", body)
    return result


async def test_both_servers_warn_of_the_same(real: RealServerFactory, tmp_path: Path) -> None:
    templates = {name: spec["template"] for name, spec in TEMPLATES_WITH_WARNINGS.items()}
    async with real.start(tmp_path) as theirs, embedded_server(tmp_path / "ours") as ours:
        wanted, got = await asyncio.gather(_warnings(theirs, templates), _warnings(ours, templates))
    assert {key: got.get(key) for key in wanted if got.get(key) != wanted[key]} == {}
    assert got.keys() == wanted.keys()
