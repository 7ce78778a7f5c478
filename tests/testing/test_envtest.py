"""Tests in Go with envtest of controller-runtime on a cluster of this package."""

import pytest
from support.go_client import run_go_operator

from batholith.testing import Cluster

pytestmark = [pytest.mark.process, pytest.mark.soak]  # its program takes minutes to build


async def test_an_operator_of_controller_runtime_runs_in_envtest() -> None:
    async with Cluster() as cluster:
        results = await run_go_operator(cluster.kubeconfig)
        assert {name: error for name, error in results.items() if error} == {}
        assert len(results) == 7
        # envtest deletes its definitions; a Widget that is left has a finalizer.
        definitions = cluster.objects("customresourcedefinitions")
        found = definitions.get("widgets.operator.example.com")
        assert found is None or "deletionTimestamp" in found["metadata"]
