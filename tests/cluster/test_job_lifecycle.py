"""Jobs on the embedded API server, with the test in the parts of scheduler and kubelet."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.api_servers import Servers
from support.jobs import task
from support.polling import until, until_true
from support.running_controller import Notes, running

from batholith.job_ctrl.controller import JobController
from batholith.job_ctrl.settings import JobSettings
from batholith.kube.client.client import Client, PatchType
from batholith.kube.errors import NotFoundError
from batholith.kube.informer.informer import Informer
from batholith.model import crds
from batholith.model.base import ApiStruct
from batholith.model.meta import ObjectMeta
from batholith.model.names import (
    COMMANDS,
    CONFIGMAPS,
    JOBS,
    NETWORKPOLICIES,
    PERSISTENTVOLUMECLAIMS,
    PODGROUPS,
    PODS,
    SECRETS,
    SERVICES,
    Resource,
)

Json = dict[str, Any]


class Seen(ApiStruct, frozen=True):
    """Any object, with its status as it is."""

    metadata: ObjectMeta = ObjectMeta()
    spec: msgspec.Raw = msgspec.Raw(b"{}")
    status: msgspec.Raw = msgspec.Raw(b"{}")

    @property
    def says(self) -> Json:
        said: Json = msgspec.json.decode(self.status)
        return said


class Play:
    """Scheduler, kubelet and user of one small cluster, in namespace ``default``."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.notes = Notes()
        self.phases: dict[str, list[str]] = defaultdict(list)
        self.jobs = Informer(client, JOBS, Seen)
        self.pods = Informer(client, PODS, Seen)
        self.podgroups = Informer(client, PODGROUPS, Seen)
        self.commands = Informer(client, COMMANDS, Seen)
        self.jobs.add_event_handler(self._on_job)

    def _on_job(self, old: Seen | None, new: Seen | None) -> None:
        phase = (new.says.get("state") or {}).get("phase") if new else None
        phases = self.phases[new.metadata.name] if new else []
        if phase and (not phases or phases[-1] != phase):
            phases.append(phase)

    async def submit(self, *tasks: Json, name: str = "j", **spec: Any) -> None:
        tasks = tasks or (task(),)
        whole = {
            "minAvailable": sum(one["replicas"] for one in tasks),
            "schedulerName": "volcano",
            "tasks": list(tasks),
            **spec,
        }
        body = {"metadata": {"name": name}, "spec": whole}
        await self.client.create(JOBS, body, namespace="default")

    async def command(self, action: str, *, name: str = "j") -> None:
        target = {"apiVersion": JOBS.api_version, "kind": "Job", "name": name, "uid": "any"}
        meta = {"generateName": f"{name}-"}
        body = {"metadata": meta, "action": action, "target": target}
        await self.client.create(COMMANDS, body, namespace="default")

    async def admit(self) -> None:
        """Wait for a PodGroup that is not admitted, and admit it."""
        await until(lambda: any(not group.says.get("phase") for group in self.podgroups))
        for group in list(self.podgroups):
            if not group.says.get("phase"):
                await self._patch(PODGROUPS, group, {"status": {"phase": "Inqueue"}})
        await until(lambda: all(group.says.get("phase") for group in self.podgroups))

    async def start(self, number: int) -> None:
        """Wait for *number* pods that have just been made, and run them on a node."""
        await until(lambda: len(self._in_phase("Pending")) == number)
        for pod in self._in_phase("Pending"):
            meta = pod.metadata
            binding = {
                "apiVersion": "v1",
                "kind": "Binding",
                "metadata": {"name": meta.name},
                "target": {"kind": "Node", "name": "n"},
            }
            await self.client.post(PODS.path("default", meta.name, "binding"), binding)
            await self.turn("Running", meta.name)

    def _in_phase(self, phase: str) -> list[Seen]:
        return [pod for pod in self.pods if pod.says.get("phase") == phase]

    async def turn(self, phase: str, *pods: str, exit_code: int | None = None) -> None:
        """Report these pods (or all) to be in *phase*."""
        status: Json = {"phase": phase}
        if exit_code is not None:
            ended = {"terminated": {"exitCode": exit_code}}
            status["containerStatuses"] = [{
                "name": "main", "state": ended, "ready": False, "restartCount": 0,
                "image": "", "imageID": "",
            }]  # fmt: skip
        for pod in list(self.pods):
            if not pods or pod.metadata.name in pods:
                await self._patch(PODS, pod, {"status": status}, "status")
                await self._seen(pod, phase)

    async def _seen(self, pod: Seen, phase: str) -> None:
        """Wait until our own watch has told of it, or of the pod's end."""

        def told() -> bool:
            now = self.pods.get(pod.metadata.key)
            same = now is not None and now.metadata.uid == pod.metadata.uid
            return not same or (now is not None and now.says.get("phase") == phase)

        await until(told)

    async def reap(self) -> None:
        """End the pods that were asked to go; those that had failed go by themselves."""
        for pod in [pod for pod in self.pods if pod.metadata.deletion_timestamp]:
            name = pod.metadata.name
            with suppress(NotFoundError):
                await self.turn("Failed", name)
                await self.client.delete(PODS, name, namespace="default", grace_period=0)

    def is_ending(self, name: str) -> bool:
        """Whether this pod was asked to go, or has gone."""
        pod = self.pods.get(f"default/{name}")
        return pod is None or bool(pod.metadata.deletion_timestamp)

    async def _patch(
        self, resource: Resource, about: Seen, body: Json, subresource: str = ""
    ) -> None:
        name = about.metadata.name
        await self.client.patch(resource, name, body, namespace="default", subresource=subresource)

    def status(self, name: str = "j") -> Json:
        job = self.jobs.get(f"default/{name}")
        return job.says if job else {}

    def phase(self, name: str = "j") -> str:
        phase: str = (self.status(name).get("state") or {}).get("phase", "")
        return phase

    async def until_phase(self, phase: str) -> None:
        await until(lambda: self.phase() == phase, phase)

    async def names(self, resource: Resource) -> set[str]:
        listed = await self.client.list(resource, namespace="default", view=Seen)
        return {one.metadata.name for one in listed.items}


@pytest.fixture
async def play(servers: Servers, tmp_path: Path) -> AsyncIterator[Play]:
    async with servers.start(tmp_path, crds=crds.load()) as server, server.client() as client:
        made = Play(client)
        caches = [made.jobs, made.pods, made.podgroups, made.commands]
        tasks = [asyncio.create_task(cache.run()) for cache in caches]
        for cache in caches:
            await cache.wait_synced()
        async with controlling(server.client("controllers"), made):
            yield made
        for one in tasks:
            one.cancel()
        await asyncio.wait(tasks)


@asynccontextmanager
async def controlling(client: Client, play: Play) -> AsyncIterator[None]:
    settings = JobSettings(status_delay=0.05, pvc_recheck_interval=0.05)
    async with client, running(JobController(client, settings=settings, recorder=play.notes)):
        yield


async def test_a_job_runs_through(play: Play) -> None:
    await play.submit()
    await play.admit()
    await play.start(2)
    await play.until_phase("Running")
    await play.turn("Succeeded")
    await play.until_phase("Completed")
    assert play.phases["j"] == ["Pending", "Running", "Completed"]
    status = play.status()
    assert (status["succeeded"], status["minAvailable"]) == (2, 2)
    assert status["taskStatusCount"] == {"t": {"phase": {"Succeeded": 2}}}
    assert [one["status"] for one in status["conditions"]] == ["Pending", "Running", "Completed"]
    assert "runningDuration" in status
    await until(lambda: not len(play.podgroups))


async def test_abort_and_resume(play: Play) -> None:
    await play.submit(plugins={"svc": [], "ssh": [], "env": []})
    await play.admit()
    await play.start(2)
    await play.until_phase("Running")
    for resource, name in (
        (SERVICES, "j"), (CONFIGMAPS, "j-svc"), (NETWORKPOLICIES, "j"), (SECRETS, "j-ssh"),
    ):  # fmt: skip
        assert name in await play.names(resource)
    await play.command("AbortJob")
    await play.until_phase("Aborting")
    await until(lambda: all(pod.metadata.deletion_timestamp for pod in play.pods))
    await play.reap()
    await play.until_phase("Aborted")
    await until(lambda: not len(play.commands) and not len(play.podgroups))
    await until(lambda: "controlledResources" not in play.status())
    assert "j-ssh" not in await play.names(SECRETS)
    await play.command("ResumeJob")
    await play.admit()
    await play.start(2)
    await play.until_phase("Running")
    assert play.phases["j"][2:] == ["Aborting", "Aborted", "Restarting", "Pending", "Running"]
    assert play.status()["controlledResources"] == {
        "plugin-svc": "svc", "plugin-ssh": "ssh", "plugin-env": "env",
    }  # fmt: skip


async def test_a_job_created_suspended_waits_until_it_may_go_on(play: Play) -> None:
    await play.submit(suspend=True)
    await play.until_phase("Aborted")
    assert not len(play.podgroups) and not len(play.pods)
    await play.client.patch(JOBS, "j", {"spec": {"suspend": False}}, namespace="default")
    await play.admit()
    await play.start(2)
    await play.until_phase("Running")
    await play.client.patch(JOBS, "j", {"spec": {"suspend": True}}, namespace="default")
    await until(lambda: all(pod.metadata.deletion_timestamp for pod in play.pods))
    await play.reap()
    await play.until_phase("Aborted")
    assert play.status()["state"]["reason"] == "Suspended"
    assert "retryCount" not in play.status()


async def test_a_failed_pod_restarts_the_job_until_its_retries_are_used_up(play: Play) -> None:
    await play.submit(maxRetry=2, policies=[{"action": "RestartJob", "event": "PodFailed"}])
    for _ in range(2):
        await play.admit()
        await play.start(2)
        await play.until_phase("Running")
        await play.turn("Failed", "j-t-0", exit_code=1)
        await until(lambda: play.phase() != "Running")
        await until(lambda: play.is_ending("j-t-1"))
        await play.reap()
    await play.until_phase("Failed")
    assert play.phases["j"] == [
        "Pending", "Running", "Restarting", "Pending", "Running", "Restarting", "Failed",
    ]  # fmt: skip
    await until(lambda: play.status().get("terminating") is None)
    assert (play.status()["retryCount"], play.status()["failed"]) == (2, 1)
    await until(lambda: len(play.pods) == 1)


async def test_a_lost_pod_comes_back_and_an_exit_code_is_answered(play: Play) -> None:
    await play.submit(policies=[{"action": "TerminateJob", "exitCode": 3}])
    await play.admit()
    await play.start(2)
    await play.until_phase("Running")
    await play.client.delete(PODS, "j-t-0", namespace="default", grace_period=0)
    await play.start(1)
    await play.until_phase("Running")
    await play.turn("Failed", "j-t-1", exit_code=3)
    await play.until_phase("Terminating")
    await until(lambda: any(pod.metadata.deletion_timestamp for pod in play.pods))
    await play.reap()
    await play.until_phase("Terminated")
    assert play.status()["state"]["reason"] == "TerminateJob"


async def test_a_job_is_scaled(play: Play) -> None:
    await play.submit(task(replicas=2, minAvailable=1), minAvailable=1)
    await play.admit()
    await play.start(2)
    await play.until_phase("Running")
    scaled = [{"op": "replace", "path": "/spec/tasks/0/replicas", "value": 3}]
    await play.client.patch(JOBS, "j", scaled, namespace="default", kind=PatchType.JSON)
    await play.start(1)
    await until(lambda: play.status().get("running") == 3)
    scaled[0]["value"] = 1
    await play.client.patch(JOBS, "j", scaled, namespace="default", kind=PatchType.JSON)
    await until(lambda: sum(bool(p.metadata.deletion_timestamp) for p in play.pods) == 2)
    await play.reap()
    await until(lambda: play.status().get("running") == 1 and len(play.pods) == 1)
    assert play.phases["j"] == ["Pending", "Running"]


async def test_claims_are_made_named_in_the_job_and_mounted(play: Play) -> None:
    claim = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
    }
    volumes = [
        {"mountPath": "/own", "volumeClaim": claim},
        {"mountPath": "/given", "volumeClaimName": "mine"},
    ]
    await play.submit(volumes=volumes)
    await until(lambda: any(event[3] == "PVCError" for event in play.notes.events))
    (own,) = await play.names(PERSISTENTVOLUMECLAIMS)
    assert own.startswith("j-pvc-")
    assert len(play.podgroups) == 0
    body = {"metadata": {"name": "mine"}, "spec": claim}
    await play.client.create(PERSISTENTVOLUMECLAIMS, body, namespace="default")
    await play.admit()
    await until(lambda: len(play.pods) == 2)
    await until(lambda: len(play.status().get("controlledResources", {})) == 2)
    spec = msgspec.json.decode(next(iter(play.pods)).spec)
    claims = {
        volume["name"]: volume["persistentVolumeClaim"]["claimName"]
        for volume in spec["volumes"]
        if "persistentVolumeClaim" in volume  # and not the service account's token
    }
    assert {*claims.values()} == {own, "mine"}
    mounts = spec["containers"][0]["volumeMounts"]
    paths = [mount["mountPath"] for mount in mounts if mount["name"] in claims]
    assert paths == ["/own", "/given"]


async def test_quirk_g7_what_svc_made_comes_back_when_somebody_deletes_it(play: Play) -> None:
    await play.submit(plugins={"svc": []})
    await play.admit()
    await play.start(2)
    await play.until_phase("Running")
    for resource, name in ((SERVICES, "j"), (NETWORKPOLICIES, "j"), (CONFIGMAPS, "j-svc")):
        await play.client.delete(resource, name, namespace="default")

        async def is_back(resource: Resource = resource, name: str = name) -> bool:
            return name in await play.names(resource)

        await until_true(is_back)
    await play.turn("Succeeded")
    await play.until_phase("Completed")

    async def all_gone() -> bool:
        return not await play.names(NETWORKPOLICIES) and "j" not in await play.names(SERVICES)

    await until_true(all_gone)


async def test_a_finished_job_goes_when_its_time_is_over(play: Play) -> None:
    await play.submit(ttlSecondsAfterFinished=0)
    await play.admit()
    await play.start(2)
    await play.until_phase("Running")
    await play.turn("Succeeded")
    await until(lambda: not len(play.jobs) and not len(play.pods))
    with pytest.raises(NotFoundError):
        await play.client.get(JOBS, "j", namespace="default", view=Seen)
