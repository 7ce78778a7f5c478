"""Jobs on the embedded API server, where the test acts as scheduler and kubelet."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.api_servers import ServerFactory
from support.jobs import task
from support.polling import wait_for, wait_until_true
from support.running_controller import FakeRecorder, running

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


class AnyObject(ApiStruct, frozen=True):
    """Any object, with its status as it is."""

    metadata: ObjectMeta = ObjectMeta()
    spec: msgspec.Raw = msgspec.Raw(b"{}")
    status: msgspec.Raw = msgspec.Raw(b"{}")

    @property
    def status_fields(self) -> Json:
        result: Json = msgspec.json.decode(self.status)
        return result


class JobHarness:
    """Scheduler, kubelet and user of one small cluster, in namespace ``default``."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.recorder = FakeRecorder()
        self.phases: dict[str, list[str]] = defaultdict(list)
        self.jobs = Informer(client, JOBS, AnyObject)
        self.pods = Informer(client, PODS, AnyObject)
        self.podgroups = Informer(client, PODGROUPS, AnyObject)
        self.commands = Informer(client, COMMANDS, AnyObject)
        self.jobs.add_event_handler(self._on_job)

    def _on_job(self, old: AnyObject | None, new: AnyObject | None) -> None:
        phase = (new.status_fields.get("state") or {}).get("phase") if new else None
        phases = self.phases[new.metadata.name] if new else []
        if phase and (not phases or phases[-1] != phase):
            phases.append(phase)

    async def submit(
        self,
        *tasks: Json,
        name: str = "j",
        annotations: dict[str, str] | None = None,
        **spec: Any,
    ) -> None:
        tasks = tasks or (task(),)
        content = {
            "minAvailable": sum(one["replicas"] for one in tasks),
            "schedulerName": "volcano",
            "tasks": list(tasks),
            **spec,
        }
        metadata = {"name": name, "annotations": annotations or {}}
        body = {"metadata": metadata, "spec": content}
        await self.client.create(JOBS, body, namespace="default")

    async def command(self, action: str, *, name: str = "j") -> None:
        job = self.jobs.get(f"default/{name}")
        uid = job.metadata.uid if job is not None else "any"
        target = {"apiVersion": JOBS.api_version, "kind": "Job", "name": name, "uid": uid}
        meta = {"generateName": f"{name}-"}
        body = {"metadata": meta, "action": action, "target": target}
        await self.client.create(COMMANDS, body, namespace="default")

    async def admit(self) -> None:
        """Wait for a PodGroup that is not admitted, and admit it."""
        await wait_for(
            lambda: any(not group.status_fields.get("phase") for group in self.podgroups)
        )
        for group in list(self.podgroups):
            if not group.status_fields.get("phase"):
                await self._patch(PODGROUPS, group, {"status": {"phase": "Inqueue"}})
        await wait_for(lambda: all(group.status_fields.get("phase") for group in self.podgroups))

    async def start(self, number: int) -> None:
        """Wait for *number* new pods, and run them on a node."""
        await wait_for(lambda: len(self._in_phase("Pending")) == number)
        for pod in self._in_phase("Pending"):
            meta = pod.metadata
            binding = {
                "apiVersion": "v1",
                "kind": "Binding",
                "metadata": {"name": meta.name},
                "target": {"kind": "Node", "name": "n"},
            }
            await self.client.post(PODS.path("default", meta.name, "binding"), binding)
            await self.report_pods("Running", meta.name)

    def _in_phase(self, phase: str) -> list[AnyObject]:
        return [pod for pod in self.pods if pod.status_fields.get("phase") == phase]

    async def report_pods(self, phase: str, *pods: str, exit_code: int | None = None) -> None:
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
                await self._wait_observed(pod, phase)

    async def _wait_observed(self, pod: AnyObject, phase: str) -> None:
        """Wait until the test's informer has the phase, or the pod's deletion."""

        def is_observed() -> bool:
            now = self.pods.get(pod.metadata.key)
            same = now is not None and now.metadata.uid == pod.metadata.uid
            return not same or (now is not None and now.status_fields.get("phase") == phase)

        await wait_for(is_observed)

    async def finish_deletions(self) -> None:
        """End the pods that were asked to go; those that had failed go by themselves."""
        for pod in [pod for pod in self.pods if pod.metadata.deletion_timestamp]:
            name = pod.metadata.name
            with suppress(NotFoundError):
                await self.report_pods("Failed", name)
                await self.client.delete(PODS, name, namespace="default", grace_period=0)

    def is_ending(self, name: str) -> bool:
        """Whether this pod is terminating or deleted."""
        pod = self.pods.get(f"default/{name}")
        return pod is None or bool(pod.metadata.deletion_timestamp)

    async def _patch(
        self, resource: Resource, about: AnyObject, body: Json, subresource: str = ""
    ) -> None:
        name = about.metadata.name
        await self.client.patch(resource, name, body, namespace="default", subresource=subresource)

    def status(self, name: str = "j") -> Json:
        job = self.jobs.get(f"default/{name}")
        return job.status_fields if job else {}

    def phase(self, name: str = "j") -> str:
        phase: str = (self.status(name).get("state") or {}).get("phase", "")
        return phase

    async def wait_phase(self, phase: str) -> None:
        await wait_for(lambda: self.phase() == phase, phase)

    async def names(self, resource: Resource) -> set[str]:
        listed = await self.client.list(resource, namespace="default", view=AnyObject)
        return {one.metadata.name for one in listed.items}


@pytest.fixture
async def harness(servers: ServerFactory, tmp_path: Path) -> AsyncIterator[JobHarness]:
    async with servers.start(tmp_path, crds=crds.load()) as server, server.client() as client:
        created = JobHarness(client)
        caches = [created.jobs, created.pods, created.podgroups, created.commands]
        tasks = [asyncio.create_task(cache.run()) for cache in caches]
        for cache in caches:
            await cache.wait_synced()
        async with running_controller(server.client("controllers"), created):
            yield created
        for one in tasks:
            one.cancel()
        await asyncio.wait(tasks)


@asynccontextmanager
async def running_controller(client: Client, harness: JobHarness) -> AsyncIterator[None]:
    settings = JobSettings(status_delay=0.05, pvc_recheck_interval=0.05)
    async with client, running(JobController(client, settings=settings, recorder=harness.recorder)):
        yield


async def test_a_job_runs_through(harness: JobHarness) -> None:
    await harness.submit()
    await harness.admit()
    await harness.start(2)
    await harness.wait_phase("Running")
    await harness.report_pods("Succeeded")
    await harness.wait_phase("Completed")
    assert harness.phases["j"] == ["Pending", "Running", "Completed"]
    status = harness.status()
    assert (status["succeeded"], status["minAvailable"]) == (2, 2)
    assert status["taskStatusCount"] == {"t": {"phase": {"Succeeded": 2}}}
    assert [one["status"] for one in status["conditions"]] == ["Pending", "Running", "Completed"]
    assert "runningDuration" in status
    await wait_for(lambda: not len(harness.podgroups))


async def test_abort_and_resume(harness: JobHarness) -> None:
    await harness.submit(plugins={"svc": [], "ssh": [], "env": []})
    await harness.admit()
    await harness.start(2)
    await harness.wait_phase("Running")
    for resource, name in (
        (SERVICES, "j"), (CONFIGMAPS, "j-svc"), (NETWORKPOLICIES, "j"), (SECRETS, "j-ssh"),
    ):  # fmt: skip
        assert name in await harness.names(resource)
    await harness.command("AbortJob")
    await harness.wait_phase("Aborting")
    await wait_for(lambda: all(pod.metadata.deletion_timestamp for pod in harness.pods))
    await harness.finish_deletions()
    await harness.wait_phase("Aborted")
    await wait_for(lambda: not len(harness.commands) and not len(harness.podgroups))
    await wait_for(
        lambda: not any("plugin-" in key for key in harness.status()["controlledResources"])
    )
    assert "j-ssh" not in await harness.names(SECRETS)
    await harness.command("ResumeJob")
    await harness.admit()
    await harness.start(2)
    await harness.wait_phase("Running")
    assert harness.phases["j"][2:] == ["Aborting", "Aborted", "Restarting", "Pending", "Running"]
    resources = harness.status()["controlledResources"]
    plugins = {"plugin-svc": "svc", "plugin-ssh": "ssh", "plugin-env": "env"}
    assert resources.items() >= plugins.items()
    assert resources["batholith-command-phase"] == "Restarting"


async def test_a_job_created_suspended_waits_until_it_may_go_on(harness: JobHarness) -> None:
    await harness.submit(suspend=True)
    await harness.wait_phase("Aborted")
    assert not len(harness.podgroups) and not len(harness.pods)
    await harness.client.patch(JOBS, "j", {"spec": {"suspend": False}}, namespace="default")
    await harness.admit()
    await harness.start(2)
    await harness.wait_phase("Running")
    await harness.client.patch(JOBS, "j", {"spec": {"suspend": True}}, namespace="default")
    await wait_for(lambda: all(pod.metadata.deletion_timestamp for pod in harness.pods))
    await harness.finish_deletions()
    await harness.wait_phase("Aborted")
    assert harness.status()["state"]["reason"] == "Suspended"
    assert "retryCount" not in harness.status()


@pytest.mark.parametrize(
    ("limits", "grace_period"),
    [
        ({"batholith.io/time-limit": "1s"}, 7),
        ({"batholith.io/time-limit": "1h1s", "batholith.io/time-limit-warning": "1h"}, 3607),
    ],
    ids=["at the limit", "warned"],
)
async def test_a_job_fails_at_its_time_limit_after_the_grace_period_of_its_pods(
    harness: JobHarness, limits: dict[str, str], grace_period: int
) -> None:
    limited = task()
    limited["template"]["spec"]["terminationGracePeriodSeconds"] = 7
    await harness.submit(limited, annotations=limits)
    await harness.admit()
    await harness.start(2)
    await harness.wait_phase("Terminating")
    assert harness.status()["state"]["reason"] == "DeadlineExceeded"
    await wait_for(lambda: all(pod.metadata.deletion_timestamp for pod in harness.pods))
    given = {pod.metadata.deletion_grace_period_seconds for pod in harness.pods}
    assert max(seconds or 0 for seconds in given) <= grace_period
    assert min(seconds or 0 for seconds in given) > grace_period * 0.9
    await harness.finish_deletions()
    await harness.wait_phase("Failed")
    assert harness.status()["state"]["reason"] == "DeadlineExceeded"
    await wait_for(lambda: not len(harness.podgroups))


async def test_a_failed_pod_restarts_the_job_until_its_retries_are_used_up(
    harness: JobHarness,
) -> None:
    await harness.submit(maxRetry=2, policies=[{"action": "RestartJob", "event": "PodFailed"}])
    for _ in range(2):
        await harness.admit()
        await harness.start(2)
        await harness.wait_phase("Running")
        await harness.report_pods("Failed", "j-t-0", exit_code=1)
        await wait_for(lambda: harness.phase() != "Running")
        await wait_for(lambda: harness.is_ending("j-t-1"))
        await harness.finish_deletions()
    await harness.wait_phase("Failed")
    assert harness.phases["j"] == [
        "Pending", "Running", "Restarting", "Pending", "Running", "Restarting", "Failed",
    ]  # fmt: skip
    await wait_for(lambda: harness.status().get("terminating") is None)
    assert (harness.status()["retryCount"], harness.status()["failed"]) == (2, 1)
    await wait_for(lambda: len(harness.pods) == 1)


async def test_a_lost_pod_comes_back_and_an_exit_code_is_answered(harness: JobHarness) -> None:
    await harness.submit(policies=[{"action": "TerminateJob", "exitCode": 3}])
    await harness.admit()
    await harness.start(2)
    await harness.wait_phase("Running")
    await harness.client.delete(PODS, "j-t-0", namespace="default", grace_period=0)
    await harness.start(1)
    await harness.wait_phase("Running")
    await harness.report_pods("Failed", "j-t-1", exit_code=3)
    await harness.wait_phase("Terminating")
    await wait_for(lambda: any(pod.metadata.deletion_timestamp for pod in harness.pods))
    await harness.finish_deletions()
    await harness.wait_phase("Terminated")
    assert harness.status()["state"]["reason"] == "TerminateJob"


async def test_a_job_is_scaled(harness: JobHarness) -> None:
    await harness.submit(task(replicas=2, minAvailable=1), minAvailable=1)
    await harness.admit()
    await harness.start(2)
    await harness.wait_phase("Running")
    scaled = [{"op": "replace", "path": "/spec/tasks/0/replicas", "value": 3}]
    await harness.client.patch(JOBS, "j", scaled, namespace="default", kind=PatchType.JSON)
    await harness.start(1)
    await wait_for(lambda: harness.status().get("running") == 3)
    scaled[0]["value"] = 1
    await harness.client.patch(JOBS, "j", scaled, namespace="default", kind=PatchType.JSON)
    await wait_for(lambda: sum(bool(p.metadata.deletion_timestamp) for p in harness.pods) == 2)
    await harness.finish_deletions()
    await wait_for(lambda: harness.status().get("running") == 1 and len(harness.pods) == 1)
    assert harness.phases["j"] == ["Pending", "Running"]


async def test_claims_are_made_named_in_the_job_and_mounted(harness: JobHarness) -> None:
    claim = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
    }
    volumes = [
        {"mountPath": "/own", "volumeClaim": claim},
        {"mountPath": "/given", "volumeClaimName": "mine"},
    ]
    await harness.submit(volumes=volumes)
    await wait_for(lambda: any(event[3] == "PVCError" for event in harness.recorder.events))
    (own,) = await harness.names(PERSISTENTVOLUMECLAIMS)
    assert own.startswith("j-pvc-")
    assert len(harness.podgroups) == 0
    body = {"metadata": {"name": "mine"}, "spec": claim}
    await harness.client.create(PERSISTENTVOLUMECLAIMS, body, namespace="default")
    await harness.admit()
    await wait_for(lambda: len(harness.pods) == 2)
    await wait_for(lambda: len(harness.status().get("controlledResources", {})) == 2)
    spec = msgspec.json.decode(next(iter(harness.pods)).spec)
    claims = {
        volume["name"]: volume["persistentVolumeClaim"]["claimName"]
        for volume in spec["volumes"]
        if "persistentVolumeClaim" in volume  # and not the service account's token
    }
    assert {*claims.values()} == {own, "mine"}
    mounts = spec["containers"][0]["volumeMounts"]
    paths = [mount["mountPath"] for mount in mounts if mount["name"] in claims]
    assert paths == ["/own", "/given"]


async def test_quirk_g7_what_svc_made_comes_back_when_somebody_deletes_it(
    harness: JobHarness,
) -> None:
    await harness.submit(plugins={"svc": []})
    await harness.admit()
    await harness.start(2)
    await harness.wait_phase("Running")
    for resource, name in ((SERVICES, "j"), (NETWORKPOLICIES, "j"), (CONFIGMAPS, "j-svc")):
        await harness.client.delete(resource, name, namespace="default")

        async def is_back(resource: Resource = resource, name: str = name) -> bool:
            return name in await harness.names(resource)

        await wait_until_true(is_back)
    await harness.report_pods("Succeeded")
    await harness.wait_phase("Completed")

    async def all_deleted() -> bool:
        return not await harness.names(NETWORKPOLICIES) and "j" not in await harness.names(SERVICES)

    await wait_until_true(all_deleted)


async def test_a_finished_job_goes_when_its_time_is_over(harness: JobHarness) -> None:
    await harness.submit(ttlSecondsAfterFinished=0)
    await harness.admit()
    await harness.start(2)
    await harness.wait_phase("Running")
    await harness.report_pods("Succeeded")
    await wait_for(lambda: not len(harness.jobs) and not len(harness.pods))
    with pytest.raises(NotFoundError):
        await harness.client.get(JOBS, "j", namespace="default", view=AnyObject)
