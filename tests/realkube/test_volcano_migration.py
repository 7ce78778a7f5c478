"""The way from Volcano, and back, as docs/migrate-from-volcano.md writes it, command by command."""

import asyncio
import os
import re
import shlex
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from support.api_servers import add_node
from support.components import component
from support.kubectl import Kubectl, needs_kubectl
from support.polling import wait_for, wait_until_true
from support.realkube import WORKLOADS, RealKubeOptions, RealServer, real_server
from support.volcano_migration import NODE, SNAPSHOTS, VolcanoMigration
from support.volcano_objects import deployment, webhook

from batholith.cli.deployment_check import DEPLOYMENTS
from batholith.model import crds
from batholith.model.names import NAMESPACES

ROOT = Path(__file__).parents[2]
NAMESPACE = "volcano-system"
CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1"


def block(name: str) -> str:
    """The shell commands of the page that are marked with *name*."""
    text = (ROOT / "docs/migrate-from-volcano.md").read_text()
    found = re.search(rf"^ *```sh {name}\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)
    assert found, name
    return found[1]


async def run(server: RealServer, home: Path, commands: str) -> None:
    """Run shell commands, all of which must succeed."""
    process = await asyncio.create_subprocess_exec(
        "bash",
        *("-e", "-o", "pipefail", "-c", commands),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "KUBECONFIG": str(server.kubeconfig), "HOME": str(home)},
    )
    async with asyncio.timeout(200):
        out, _ = await process.communicate()
    assert process.returncode == 0, out.decode()


async def install_volcano(server: RealServer) -> None:
    """What its chart installs, as far as it is in our way."""
    await server.create(NAMESPACES.path(), {"metadata": {"name": NAMESPACE}})
    admission = deployment(name="volcano-admission", app="volcano-admission", image="vc-webhook")
    for body in (deployment("controllers"), deployment("scheduler"), admission):
        typed = {"apiVersion": "apps/v1", "kind": "Deployment", **body}
        await server.create(DEPLOYMENTS.path(NAMESPACE), typed)
    for kind, path in (("Mutating", "/jobs/mutate"), ("Validating", "/jobs/validate")):
        plural = f"{kind.lower()}webhookconfigurations"
        await server.create(f"{CONFIGURATIONS}/{plural}", webhook(kind, path))


@asynccontextmanager
async def volcano_cluster(tmp_path: Path) -> AsyncIterator[tuple[RealServer, VolcanoMigration]]:
    """A cluster in which Volcano is at work, and a job of its runs."""
    options = RealKubeOptions(controllers=WORKLOADS, crds=crds.load())
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(real_server(tmp_path, options))
        client = await stack.enter_async_context(server.client("admin"))
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        it = VolcanoMigration(server, client, stack)
        caches = [tasks.create_task(cache.run()) for cache in it.informers.values()]
        await add_node(server, NODE)
        await it.restore_snapshot(SNAPSHOTS["running"])
        await install_volcano(server)
        it.migrated = True
        yield server, it
        await asyncio.gather(*it.kubelet_tasks)
        for cache in caches:
            cache.cancel()


async def replicas(server: RealServer) -> dict[str, int]:
    found = await server.get(DEPLOYMENTS.path(NAMESPACE))
    return {each["metadata"]["name"]: each["spec"]["replicas"] for each in found["items"]}


async def configurations(server: RealServer) -> set[str]:
    """Whose webhooks there are."""
    names = []
    for kind in ("mutating", "validating"):
        found = await server.get(f"{CONFIGURATIONS}/{kind}webhookconfigurations")
        names += [each["metadata"]["name"] for each in found["items"]]
    return {name.split("-", 1)[0] for name in names}


@pytest.mark.soak
async def test_the_way_there_and_back(tmp_path: Path) -> None:
    needs_kubectl()
    async with volcano_cluster(tmp_path) as (server, it):
        kubectl = Kubectl(server, tmp_path)
        config = ["--kubeconfig", str(server.kubeconfig)]

        async def pods_of(app: str) -> bool:
            found = await server.get(f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector=app={app}")
            return bool(found["items"])

        for app in ("volcano-controller", "volcano-scheduler"):
            await wait_until_true(partial(pods_of, app))
        for name in ("controllers", "scheduler"):
            async with component(name, *config) as refused:
                assert await refused.wait_exit() == 1
                assert "Volcano is running in this cluster" in refused.text

        # No node here pulls images.
        check = block("preflight").replace("--image registry.example.com/batholith:0.1.0", "")
        command = f"{shlex.quote(sys.executable)} -m batholith.cli"
        await run(server, tmp_path, check.strip().replace("batholith", command) + " --skip-image")

        await run(server, tmp_path, block("stop"))
        for app in ("volcano-controller", "volcano-scheduler"):
            assert not await pods_of(app)
        manifests = str(ROOT / "manifests")
        await kubectl("apply", "--server-side", "--force-conflicts", "-k", manifests)
        async with (
            component("controllers", *config) as controllers,
            component("scheduler", *config) as other,
        ):
            await controllers.wait_ready()
            await other.wait_ready()
            await run(server, tmp_path, block("webhooks"))
            assert await configurations(server) == {"batholith"}
            left = await replicas(server)
            assert [left[f"volcano-{each}"] for each in ("controllers", "scheduler")] == [0, 0]
            assert left["volcano-admission"] == 0
            await it.finish_pods()
            await wait_for(lambda: it.phase("Job", "j") == "Completed")
            assert it.pods() == it.volcano_objects("Pod")
            assert [await each.stop() for each in (controllers, other)] == [0, 0]

        await run(server, tmp_path, block("back"))
        now = await replicas(server)
        ours = {name: number for name, number in now.items() if name.startswith("batholith-c")}
        assert ours == {"batholith-controllers": 0}
        assert now["batholith-scheduler"] == 0
        assert now["volcano-controllers"] == now["volcano-scheduler"] == 1
        assert await configurations(server) == set()
