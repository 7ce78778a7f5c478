"""Clusters with controllers of workloads: each test runs with ours, and with Kubernetes'."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from support.api_servers import add_namespace, add_node
from support.realkube import RealKube, RealKubeOptions, server_view
from support.workload_cluster import NODE, REAL_CONTROLLERS, WorkloadCluster, embedded_workloads

from batholith.model.names import NODES


@pytest.fixture(scope="session")
def real_workloads(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealKube]:
    """A real API server with kube-controller-manager, in which each test has a namespace."""
    directory = tmp_path_factory.mktemp("workloads")
    with RealKube(directory, RealKubeOptions(controllers=REAL_CONTROLLERS)) as kube:
        RealKube.shared.append(kube)
        yield kube


@pytest.fixture(params=["embedded", pytest.param("real", marks=pytest.mark.process)])
async def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[WorkloadCluster]:
    if request.param == "embedded":
        async with embedded_workloads(tmp_path) as embedded:
            yield embedded
        return
    kube: RealKube = request.getfixturevalue("real_workloads")
    if not kube.is_running:
        kube.start()
    namespace = f"test-{tmp_path.name[:40].rstrip('-_').replace('_', '-').lower()}"
    async with server_view(kube) as server:
        if (await server.request("GET", NODES.path("", NODE))).status == 404:
            await add_node(server, NODE)
        await add_namespace(server, namespace)
        yield WorkloadCluster(server, embedded=False, namespace=namespace)
