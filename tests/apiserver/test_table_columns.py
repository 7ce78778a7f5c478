"""The columns of tables of built-in kinds are those of kube-apiserver."""

from pathlib import Path

import pytest
from support.api_servers import RealServerFactory
from support.embedded_apiserver import Server, embedded_server

from batholith.local.apiserver.builtin.kinds import BUILT_IN
from batholith.local.apiserver.kinds.info import KindInfo

pytestmark = pytest.mark.cluster

TABLE = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}


async def columns(server: Server, kind: KindInfo) -> list[tuple[str, str, int]]:
    """Name, type and priority of each column."""
    response = await server.request("GET", kind.resource.path(), headers=TABLE)
    assert response.status == 200, (kind.resource, response.body)
    found = response.body["columnDefinitions"]
    return [(each["name"], each["type"], each["priority"]) for each in found]


async def test_tables_have_the_columns_of_kube_apiserver(
    real: RealServerFactory, tmp_path: Path
) -> None:
    listed = [kind for kind in BUILT_IN if "list" in kind.verbs and not kind.computed]
    async with real.start(tmp_path) as theirs, embedded_server(tmp_path / "ours") as ours:
        differing = {}
        for kind in listed:
            wanted, got = await columns(theirs, kind), await columns(ours, kind)
            if wanted != got:
                differing[f"{kind.resource.group}/{kind.resource.kind}"] = wanted, got
    assert differing == {}
