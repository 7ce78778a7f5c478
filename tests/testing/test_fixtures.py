"""The fixtures of the plugin on an existing cluster, in several processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from batholith.testing import ApiServer

pytestmark = pytest.mark.process

INNER = """
import pytest


@pytest.mark.parametrize("number", range(2))
def test_it(batholith, number):
    batholith.create("ConfigMap", {"metadata": {"name": "a"}})
    names = [each["metadata"]["name"] for each in batholith.list("ConfigMap")]
    assert [name for name in names if name != "kube-root-ca.crt"] == ["a"]


@pytest.mark.batholith(nodes=1)
def test_its_own_cluster(batholith):
    raise AssertionError("an existing cluster is used")
"""


def test_tests_of_several_processes_share_an_existing_cluster(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(INNER)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    with ApiServer() as server:
        result = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:schemathesis", "."],
            check=False,
            cwd=tmp_path,
            env={
                **os.environ,
                "USE_EXISTING_CLUSTER": "true",
                "KUBECONFIG": str(server.kubeconfig),
            },
            capture_output=True,
            text=True,
        )
        assert result.returncode == 0, result.stdout
        assert "2 passed, 1 skipped" in result.stdout
        created = {
            change.object["metadata"]["name"]
            for change in server.changes
            if change.resource.kind == "Namespace" and change.type == "ADDED"
        }
        assert len([name for name in created if name.startswith("test-it-")]) == 2
        remaining = server.objects("namespaces")
        for name in created & remaining.keys():
            assert "deletionTimestamp" in remaining[name]["metadata"]
