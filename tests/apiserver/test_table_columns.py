"""The columns of tables are those of kube-apiserver."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from support.api_servers import RealServerFactory, ServerFactory
from support.api_types import TABLE
from support.embedded_apiserver import Server, embedded_server

from batholith.local.apiserver.builtin.kinds import BUILT_IN
from batholith.model import crds, names
from batholith.model.names import Resource

Json = dict[str, Any]

PLAIN = Resource("example.com", "v1", "plains", "Plain", namespaced=False)
DEFINITION: Json = {
    "metadata": {"name": "plains.example.com"},
    "spec": {
        "group": PLAIN.group,
        "scope": "Cluster",
        "names": {"plural": PLAIN.plural, "kind": PLAIN.kind},
        "versions": [
            {
                "name": PLAIN.version,
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object"}},
            }
        ],
    },
}
"""A custom kind that declares no columns."""

pytestmark = pytest.mark.cluster


async def columns(server: Server, resource: Resource) -> list[Json]:
    response = await server.request("GET", resource.path(), headers=TABLE)
    assert response.status == 200, (resource, response.body)
    found: list[Json] = response.body["columnDefinitions"]
    return found


async def test_tables_have_the_columns_of_kube_apiserver(
    real: RealServerFactory, tmp_path: Path
) -> None:
    listed = [k.resource for k in BUILT_IN if "list" in k.verbs and not k.computed]
    listed += [names.JOBS, names.COMMANDS, PLAIN]
    async with (
        real.start(tmp_path) as theirs,
        embedded_server(tmp_path / "ours", crds=crds.load()) as ours,
    ):
        for server in (theirs, ours):
            await server.install_crds(deepcopy(DEFINITION))
        differing = {}
        for resource in listed:
            wanted, got = await columns(theirs, resource), await columns(ours, resource)
            if wanted != got:
                differing[f"{resource.group}/{resource.kind}"] = wanted, got
    assert differing == {}


async def test_metadata_alone_lacks_the_generation_of_the_template_of_a_daemon_set(
    servers: ServerFactory, tmp_path: Path
) -> None:
    labels = {"a": "b"}
    pod = {"containers": [{"name": "c", "image": "i"}]}
    body = {
        "metadata": {"name": "d", "annotations": {"note": "kept"}},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }
    async with servers.start(tmp_path) as server:
        await server.create(names.DAEMONSETS.path("default"), body)
        path = names.DAEMONSETS.path("default", "d")
        whole = await server.get(path)
        (row,) = (await server.request("GET", path, headers=TABLE)).body["rows"]
        partial = {"Accept": TABLE["Accept"].replace("Table", "PartialObjectMetadata")}
        metadata = (await server.request("GET", path, headers=partial)).body["metadata"]
    assert names.TEMPLATE_GENERATION in whole["metadata"]["annotations"]
    for each in (row["object"]["metadata"], metadata):
        assert each["annotations"] == {"note": "kept"}
