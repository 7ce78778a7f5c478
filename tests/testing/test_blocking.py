"""A cluster in its own thread, for tests and clients that block."""

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client as kubernetes_client
from kubernetes import config as kubernetes_config
from support.pytest_runs import passes

from batholith.kube.errors import NotFoundError
from batholith.testing import (
    ApiServer,
    BlockingApiServer,
    BlockingCluster,
    Cluster,
    RequestMatcher,
    WaitTimeoutError,
)

Json = dict[str, Any]
JOBS = "jobs.batch.volcano.sh"
CONFIG_MAP: Json = {"metadata": {"name": "a"}, "data": {"b": "c"}}


def job(command: str = "sleep 0.1") -> Json:
    container = {"name": "main", "image": "busybox", "command": command.split()}
    template = {"spec": {"containers": [container], "restartPolicy": "Never"}}
    tasks = [{"name": "worker", "replicas": 2, "template": template}]
    return {"metadata": {"name": "train"}, "spec": {"schedulerName": "volcano", "tasks": tasks}}


def config_maps(server: BlockingApiServer) -> Any:
    """A client that blocks."""
    load: Any = kubernetes_config.load_kube_config
    load(str(server.kubeconfig))
    return kubernetes_client.CoreV1Api()


def test_a_job_runs_in_a_test_that_blocks() -> None:
    with Cluster(nodes=2) as cluster:
        cluster.create(JOBS, job())
        found = cluster.wait_for_phase(JOBS, "train", "Completed")
        assert found["status"]["succeeded"] == 2
        assert len(cluster.pods_of("train")) == 2
        cluster.delete(JOBS, "train")
        cluster.wait_deleted("Pod", "train-worker-0")
        with pytest.raises(NotFoundError):
            cluster.get(JOBS, "train")
    assert "batholith-testing" not in [thread.name for thread in threading.enumerate()]


async def test_a_client_that_blocks_is_served_in_an_async_test() -> None:
    """It would wait for ever for a server in the loop that it blocks."""
    with ApiServer() as server:
        maps = config_maps(server)
        maps.create_namespaced_config_map("default", CONFIG_MAP)
        assert maps.read_namespaced_config_map("a", "default").data == {"b": "c"}
        maps.api_client.close()
        assert server.count("create", "ConfigMap") == 1


def test_conditions_may_use_the_cluster_but_not_wait_in_it() -> None:
    with ApiServer() as server:
        server.create("ConfigMap", CONFIG_MAP)
        server.wait_until(lambda: "default/a" in server.objects("configmaps"))
        with pytest.raises(RuntimeError, match="cannot wait in the thread of the cluster"):
            server.wait_until(lambda: server.get("configmaps", "a"))
        with pytest.raises(WaitTimeoutError):
            server.wait_until(lambda: False, timeout=0.01)
        server.put("configmaps", "a", data={"b": "d"})
        assert server.get("configmaps", "a")["data"] == {"b": "d"}


def test_requests_are_held_and_released() -> None:
    with ApiServer() as server:
        maps = config_maps(server)
        held = server.faults.hold(RequestMatcher("create", "configmaps"))
        thread = threading.Thread(
            target=maps.create_namespaced_config_map, args=("default", CONFIG_MAP)
        )
        thread.start()
        server.run(held.wait_held())
        assert server.objects("configmaps").get("default/a") is None
        server.call(held.release)
        thread.join()
        assert "default/a" in server.objects("configmaps")
        maps.api_client.close()


def test_an_error_at_the_start_leaves_no_thread(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError), ApiServer(data_dir=tmp_path / "file" / "data"):
        pass
    assert "batholith-testing" not in [thread.name for thread in threading.enumerate()]


async def test_resources_are_named_as_kubectl_names_them() -> None:
    widgets: Json = {
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Cluster",
            "names": {"plural": "widgets", "kind": "Widget"},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": {"type": "object"}},
                }
            ],
        },
    }
    async with Cluster(crds=[widgets], nodes=0, scheduler=False, controllers=False) as cluster:
        assert cluster.resource("Pod") == cluster.resource("pods")
        assert cluster.resource("Job.batch").api_version == "batch/v1"
        assert cluster.resource(JOBS).api_version == "batch.volcano.sh/v1alpha1"
        created = await cluster.create("Widget", {"metadata": {"name": "w"}})
        assert created["apiVersion"] == "example.com/v1"
        assert list(cluster.objects("widgets")) == ["w"]
        for count in (cluster.count("create", "Widget"), cluster.count("get", "pods/log")):
            assert count == 0
        with pytest.raises(ValueError, match=r"ambiguous: jobs\.batch, jobs\.batch\.volcano\.sh"):
            cluster.objects("Job")
        with pytest.raises(ValueError, match=r"no resource 'Pdo' is served; did you mean 'Pod'"):
            await cluster.get("Pdo", "a")
        with pytest.raises(ValueError, match="did you mean 'pods'"):
            cluster.count("create", "pots")


@pytest.mark.batholith(nodes=3, scheduler=False)
def test_the_fixture_of_the_plugin_is_a_cluster(batholith_cluster: BlockingCluster) -> None:
    assert len(batholith_cluster.objects("Node")) == 3


@pytest.mark.process
async def test_the_plugin_imports_nothing_in_runs_that_do_not_use_it(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import sys\n\n\ndef test_it(pytestconfig):\n"
        "    assert pytestconfig.pluginmanager.has_plugin('batholith')\n"
        "    own = {name for name in sys.modules if name.startswith('batholith')}\n"
        "    assert own <= {'batholith', 'batholith.pytest_plugin'}, own\n"
        "    assert 'aiohttp' not in sys.modules and 'asyncio.base_events' not in sys.modules\n"
    )
    without = ("no:asyncio", "no:anyio", "no:schemathesis", "no:hypothesispytest")
    await passes(tmp_path, *(option for each in without for option in ("-p", each)), "-W", "error")


START_WITH_OPEN_FILES = """
import resource, sys
from batholith.testing import Cluster

resource.setrlimit(resource.RLIMIT_NOFILE, (64, int(sys.argv[1])))
with Cluster():
    print("started")
"""


def start_with_open_files(limit: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", START_WITH_OPEN_FILES, str(limit)],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.process
def test_a_cluster_raises_the_limit_of_open_files() -> None:
    started = start_with_open_files(512)
    assert (started.stdout, started.returncode) == ("started\n", 0), started.stderr


@pytest.mark.process
def test_a_cluster_that_may_open_too_few_files_says_how_to_allow_more() -> None:
    started = start_with_open_files(128)
    assert "and the limit is 128; raise it (`ulimit -n 2" in started.stderr
    assert (started.stdout, started.returncode) == ("", 1)
