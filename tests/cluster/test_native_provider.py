"""Volcano jobs as gangs of Kubernetes itself: kube-scheduler starts them, or ours does."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from support.api_servers import ServerFactory, add_node, merge_patch
from support.embedded_apiserver import Server
from support.polling import wait_until_true
from support.realkube import GANG_GATES, RealServer
from support.running_controller import FakeRecorder, running

from batholith.job_ctrl.controller import JobController
from batholith.job_ctrl.settings import JobSettings
from batholith.model import crds
from batholith.model.names import JOBS, NATIVE_PODGROUPS, PODGROUPS, PODS, QUEUES
from batholith.scheduler.scheduler import Scheduler, SchedulerSettings

Json = dict[str, Any]
SCHEDULERS = SchedulerSettings(pod_scheduler_names=("default-scheduler",))


def job(name: str, replicas: int, **spec: Any) -> Json:
    container = {"name": "main", "image": "busybox", "resources": {"requests": {"cpu": "1"}}}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    task = {"name": "t", "replicas": replicas, "template": template}
    return {
        "apiVersion": JOBS.api_version,
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {"minAvailable": replicas, "queue": "default", "tasks": [task], **spec},
    }


@asynccontextmanager
async def platform(servers: ServerFactory, directory: Path) -> AsyncIterator["Platform"]:
    """A server with a node of three CPUs, the job controller and a scheduler."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(servers.start(directory, crds=crds.load()))
        body = {"apiVersion": QUEUES.api_version, "kind": "Queue", "metadata": {"name": "default"}}
        await server.create(QUEUES.path(), body | {"spec": {"weight": 1}})
        state = {"status": {"state": "Open"}}
        await merge_patch(server, QUEUES.path("", "default", "status"), state)
        await add_node(server, "node", cpu="3")
        if isinstance(server, RealServer):
            process = server.kube.start_scheduler(f"--feature-gates={GANG_GATES}")
            stack.callback(process.wait)
            stack.callback(process.kill)
        else:
            client = await stack.enter_async_context(server.client("scheduler"))
            await stack.enter_async_context(running(Scheduler(client, settings=SCHEDULERS)))
        recorder = FakeRecorder()
        client = await stack.enter_async_context(server.client("admin"))
        settings = JobSettings(native_podgroups=NATIVE_PODGROUPS, place_at_creation=True)
        controller = JobController(client, settings=settings, recorder=recorder)
        await stack.enter_async_context(running(controller))
        yield Platform(server, recorder)


class Platform:
    """What the test sees of it."""

    def __init__(self, server: Server, recorder: FakeRecorder) -> None:
        self._server = server
        self.recorder = recorder

    async def create(self, body: Json) -> None:
        await self._server.create(JOBS.path("default"), body)

    async def change(self, name: str, spec: Json) -> None:
        await merge_patch(self._server, JOBS.path("default", name), {"spec": spec})

    async def add_node(self, name: str) -> None:
        await add_node(self._server, name, cpu="3")

    async def groups(self) -> list[Json]:
        return list((await self._server.get(NATIVE_PODGROUPS.path("default")))["items"])

    async def pods(self, name: str) -> list[Json]:
        path = f"{PODS.path('default')}?labelSelector=volcano.sh/job-name%3D{name}"
        return list((await self._server.get(path))["items"])

    async def set_phases(self, name: str, phase: str) -> None:
        for pod in await self.pods(name):
            path = PODS.path("default", pod["metadata"]["name"], "status")
            await merge_patch(self._server, path, {"status": {"phase": phase}})

    async def wait_pods(self, name: str, is_done: Callable[[list[Json]], bool]) -> list[Json]:
        found: list[Json] = []

        async def check() -> bool:
            found[:] = await self.pods(name)
            return is_done(found)

        await wait_until_true(check)
        return found

    async def wait_job(self, name: str, is_done: Callable[[Json], bool]) -> None:
        async def check() -> bool:
            return is_done((await self._server.get(JOBS.path("default", name)))["status"])

        await wait_until_true(check)

    async def has_no_podgroup_of_volcano(self) -> bool:
        return not (await self._server.get(PODGROUPS.path("default")))["items"]


def bound(pods: list[Json], count: int = 2) -> bool:
    return len(pods) == count and all(pod["spec"].get("nodeName") for pod in pods)


async def test_jobs_start_as_gangs_of_kubernetes_itself_and_restart_as_new_ones(
    servers: ServerFactory, tmp_path: Path
) -> None:
    """INV-NG-19, INV-NG-20."""
    async with platform(servers, tmp_path) as world:
        policies = [{"event": "PodFailed", "action": "RestartJob"}]
        await world.create(job("fits", 2, policies=policies))
        pods = await world.wait_pods("fits", bound)
        (group,) = await world.groups()
        assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 2}}
        for pod in pods:
            assert pod["spec"]["schedulingGroup"] == {"podGroupName": group["metadata"]["name"]}
            assert pod["spec"]["schedulerName"] == "default-scheduler"
        await world.create(job("large", 4))
        waiting = await world.wait_pods("large", lambda found: len(found) == 4)
        await world.wait_job(
            "large", lambda status: "pod" in (status.get("state") or {}).get("message", "")
        )
        assert not any(pod["spec"].get("nodeName") for pod in waiting)

        await world.set_phases("fits", "Running")
        await world.wait_job("fits", lambda status: status["state"]["phase"] == "Running")
        await world.change("fits", {"minAvailable": 1})
        limits = "minAvailable 1 applies from the next restart of the job on"

        async def is_reported() -> bool:
            return any(limits in message for *_, message in world.recorder.events)

        await wait_until_true(is_reported)
        failed = pods[0]["metadata"]
        await world.set_phases("fits", "Failed")
        again = await world.wait_pods(
            "fits", lambda found: bound(found) and failed["uid"] not in map(uid, found)
        )
        groups = {each["metadata"]["name"]: each for each in await world.groups()}
        new = groups[group["metadata"]["name"]]
        assert uid(new) != uid(group)
        assert new["spec"]["schedulingPolicy"] == {"gang": {"minCount": 1}}
        assert len(again) == 2
        await world.set_phases("fits", "Succeeded")
        await world.wait_job("fits", lambda status: status["state"]["phase"] == "Completed")

        async def is_clean() -> bool:
            return all(
                each["metadata"]["name"] != new["metadata"]["name"] for each in await world.groups()
            )

        await wait_until_true(is_clean)
        await world.add_node("another")
        await world.wait_pods("large", lambda found: bound(found, 4))
        assert await world.has_no_podgroup_of_volcano()


def uid(obj: Json) -> str:
    return str(obj["metadata"]["uid"])
