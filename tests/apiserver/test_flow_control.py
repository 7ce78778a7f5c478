"""FlowSchemas and PriorityLevelConfigurations that exist from the start, on both servers."""

from pathlib import Path
from typing import Any

import pytest
from support.api_servers import RealServerFactory, ServerFactory
from support.embedded_apiserver import MERGE, Server, embedded_server
from support.polling import wait_until_true

from batholith.local.apiserver.builtin.flow_control_objects import (
    AUTO_UPDATE,
    FLOW_SCHEMAS,
    PRIORITY_LEVELS,
    RESOURCES,
)

Json = dict[str, Any]
SCHEMAS, LEVELS = FLOW_SCHEMAS.path(), PRIORITY_LEVELS.path()
pytestmark = pytest.mark.cluster


def _content(obj: Json) -> Json:
    """An object without what differs from one server to the next."""
    (*conditions,) = (obj.get("status") or {}).get("conditions") or ()
    return {
        "metadata": {key: obj["metadata"].get(key) for key in ("name", "annotations")},
        "spec": obj["spec"],
        "conditions": [{**each, "lastTransitionTime": ""} for each in conditions],
    }


async def _wait_condition(server: Server, name: str, status: str) -> Json:
    """Wait until the condition Dangling of a schema has *status*; return the condition."""
    found: list[Json] = []

    async def has_status() -> bool:
        schema = await server.get(f"{SCHEMAS}/{name}")
        found[:] = (schema.get("status") or {}).get("conditions") or []
        return any((each["type"], each["status"]) == ("Dangling", status) for each in found)

    await wait_until_true(has_status)
    return next(each for each in found if each["type"] == "Dangling")


async def test_a_new_cluster_has_the_objects_of_kube_apiserver(
    real: RealServerFactory, tmp_path: Path
) -> None:
    async with real.start(tmp_path) as theirs, embedded_server(tmp_path / "ours") as ours:
        for resource in RESOURCES:
            wanted = (await theirs.get(resource.path()))["items"]
            if resource is FLOW_SCHEMAS:
                for each in wanted:
                    await _wait_condition(ours, each["metadata"]["name"], "False")
            found = (await ours.get(resource.path()))["items"]
            assert list(map(_content, found)) == list(map(_content, wanted))


async def test_a_flow_schema_reports_whether_its_priority_level_exists(
    servers: ServerFactory, tmp_path: Path
) -> None:
    async with servers.start(tmp_path) as server:
        spec: Json = {"priorityLevelConfiguration": {"name": "level"}}
        await server.create(SCHEMAS, {"metadata": {"name": "schema"}, "spec": spec})
        missing = await _wait_condition(server, "schema", "True")
        assert missing["reason"] == "NotFound"
        assert missing["message"].endswith('named "level" but there is no such object')
        spec = {"type": "Limited", "limited": {"limitResponse": {"type": "Reject"}}}
        await server.create(LEVELS, {"metadata": {"name": "level"}, "spec": spec})
        found = await _wait_condition(server, "schema", "False")
        assert found["reason"] == "Found"
        assert found["message"].endswith('named "level" and it exists')
        await server.request("DELETE", f"{LEVELS}/level")
        await _wait_condition(server, "schema", "True")


async def test_objects_of_every_cluster_are_restored(tmp_path: Path) -> None:
    async with embedded_server(tmp_path) as server:
        for path in (f"{SCHEMAS}/exempt", f"{LEVELS}/system"):
            before = await server.get(path)
            assert (await server.request("DELETE", path)).status == 200

            async def exists(path: str = path) -> bool:
                return (await server.request("GET", path)).status == 200

            await wait_until_true(exists)
            assert (await server.get(path))["spec"] == before["spec"]


async def _patch(server: Server, path: str, precedence: int, update: str | None) -> Json:
    change = {
        "metadata": {"annotations": {AUTO_UPDATE: update}},
        "spec": {"matchingPrecedence": precedence},
    }
    response = await server.request("PATCH", path, change, content_type=MERGE)
    assert response.status == 200, response.body
    changed: Json = response.body
    return changed


async def test_a_changed_object_is_restored_unless_its_annotation_forbids_it(
    tmp_path: Path,
) -> None:
    async with embedded_server(tmp_path) as server:
        mine, restored, unclear = (
            f"{SCHEMAS}/{name}" for name in ("probes", "service-accounts", "kube-scheduler")
        )
        await _patch(server, mine, 77, "false")
        await _patch(server, unclear, 78, None)
        await _patch(server, restored, 79, "true")

        async def is_restored() -> bool:
            return bool((await server.get(restored))["spec"]["matchingPrecedence"] == 9000)

        async def is_claimed() -> bool:
            annotations = (await server.get(unclear))["metadata"].get("annotations") or {}
            return bool(annotations.get(AUTO_UPDATE) == "false")

        await wait_until_true(is_restored)
        await wait_until_true(is_claimed)
        assert (await server.get(mine))["spec"]["matchingPrecedence"] == 77
        assert (await server.get(unclear))["spec"]["matchingPrecedence"] == 78
    async with embedded_server(tmp_path) as server:  # after a restart, too
        assert (await server.get(mine))["spec"]["matchingPrecedence"] == 77


async def test_an_object_of_another_version_of_kubernetes_is_deleted(tmp_path: Path) -> None:
    async with embedded_server(tmp_path) as server:
        metadata = {"name": "former", "annotations": {AUTO_UPDATE: "true"}}
        spec = {"priorityLevelConfiguration": {"name": "system"}}
        await server.create(SCHEMAS, {"metadata": metadata, "spec": spec})

        async def is_deleted() -> bool:
            return (await server.request("GET", f"{SCHEMAS}/former")).status == 404

        await wait_until_true(is_deleted)
