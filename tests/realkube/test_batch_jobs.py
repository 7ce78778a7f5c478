"""The controller of batch/v1 Jobs writes what kube-controller-manager writes.

Each scenario runs under both controllers at once, in two namespaces; the Jobs differ in
``managedBy`` alone. Then Jobs, pods and events are compared field by field.
"""

import asyncio
import difflib
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support.batch_scenarios import JOB, NODE, SCENARIOS, Scenario, pod_template
from support.realkube import CONTROLLERS, RealKubeOptions, real_server
from support.running_controller import running
from support.scripted_kubelet import RawPod, Script, ScriptedKubelet

from batholith.batch_ctrl.controller import BatchJobController
from batholith.kube.client.client import Client, PatchType
from batholith.kube.client.events import EventRecorder
from batholith.kube.informer.informer import Informer
from batholith.model.base import ApiStruct
from batholith.model.meta import ObjectMeta
from batholith.model.names import BATCH_JOBS, EVENTS, NAMESPACES, NODES, PODS, SERVICEACCOUNTS

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

Json = dict[str, Any]

OURS, THEIRS = "batholith", "kubernetes"
MANAGED_BY = "batholith.io/job-controller"
STEP_TIMEOUT = 90.0
SETTLE_TIMEOUT, SETTLE_INTERVAL = 60.0, 1.5
"""Seconds until what differs counts as different, and between two comparisons."""
_POD_NAME = re.compile(
    r"\b(job(?:\.with\.dots)?(?:-\d+)?-|n{58}|n{55}-\d-)[a-z0-9]{5}\b"  # long names are of n
)


class RawJob(ApiStruct, frozen=True):
    """A Job as the API server shows it."""

    metadata: ObjectMeta = ObjectMeta()
    spec: Json = {}
    status: Json = {}


@dataclass(slots=True, kw_only=True)
class _Run:
    """A scenario under one controller."""

    client: Client
    jobs: Informer[RawJob]
    kubelet: ScriptedKubelet
    scenario: Scenario
    side: str
    script: Script = field(init=False)

    def __post_init__(self) -> None:
        self.script = Script(outcomes=self.scenario.outcomes, on_delete=self.scenario.on_delete)

    @property
    def namespace(self) -> str:
        return f"{self.side}-{self.scenario.name}"

    @property
    def name(self) -> str:
        return str(self.scenario.metadata.get("name", JOB))

    async def run(self) -> None:
        """Create the Job and take the steps."""
        for step in self.scenario.before:
            await step(self)
        spec = {"template": pod_template(self.scenario.template), **self.scenario.spec}
        if self.side == OURS:
            spec["managedBy"] = MANAGED_BY
        body = {"metadata": {"name": self.name, **self.scenario.metadata}, "spec": spec}
        await self.client.create(BATCH_JOBS, body, namespace=self.namespace)
        for step in self.scenario.steps:
            await step(self)

    async def wait(self, what: str, condition: Callable[[Json], object]) -> None:
        def holds() -> object:
            job = self.jobs.get(f"{self.namespace}/{self.name}")
            return job is not None and condition({"spec": job.spec, "status": job.status})

        await self._until(what, holds)

    async def wait_pods(self, what: str, condition: Callable[[Sequence[Json]], object]) -> None:
        await self._until(what, lambda: condition([_plain(pod) for pod in self._pods()]))

    async def patch(self, spec: Json) -> None:
        await self.client.patch(BATCH_JOBS, self.name, {"spec": spec}, namespace=self.namespace)

    async def patch_pod(self, index: str, metadata: Json) -> None:
        name = self._running(index).metadata.name
        await self.client.patch(
            PODS, name, {"metadata": metadata}, namespace=self.namespace, kind=PatchType.MERGE
        )

    async def delete_pod(self, index: str) -> None:
        name = self._running(index).metadata.name
        await self.client.delete(PODS, name, namespace=self.namespace)

    async def create_pod(self, body: Json) -> None:
        await self.client.create(PODS, body, namespace=self.namespace)

    async def delete_job(self, propagation: str) -> None:
        await self.client.delete(
            BATCH_JOBS, self.name, namespace=self.namespace, propagation=propagation
        )

    def finish(self, outcomes: Mapping[str, str]) -> None:
        self.script.finish.update(outcomes)

    def release(self) -> None:
        self.script.released.set()

    def _pods(self) -> list[RawPod]:
        return [pod for pod in self.kubelet.latest() if pod.metadata.namespace == self.namespace]

    def _running(self, index: str) -> RawPod:
        found = [pod for pod in self._pods() if pod.phase == "Running" and pod.index == index]
        return min(found, key=lambda pod: (pod.metadata.creation_timestamp, pod.metadata.name))

    async def _until(self, what: str, holds: Callable[[], object]) -> None:
        try:
            async with asyncio.timeout(STEP_TIMEOUT):
                while not holds():  # noqa: ASYNC110 - of stores that change at any time
                    await asyncio.sleep(0.05)
        except TimeoutError:
            shown = json.dumps(await self.result(), indent=1)
            raise AssertionError(f"{self.namespace}: no {what}\n{shown}") from None

    async def result(self) -> Json:
        """Return the objects of the namespace without what differs by chance."""
        listed = {
            resource.plural: [
                _strip(each)
                for each in (
                    await self.client.list(resource, view=dict[str, Any], namespace=self.namespace)
                ).items
            ]
            for resource in (BATCH_JOBS, PODS)
        }
        events = await self.client.list(EVENTS, view=dict[str, Any], namespace=self.namespace)
        counted: Counter[tuple[str, ...]] = Counter()
        for event in events.items:
            about = event["involvedObject"]["kind"]
            message = _strip(event["message"])
            source = event["source"].get("component", "")
            counted[about, event["type"], event["reason"], message, source] += event["count"]
        listed["events"] = [[*key, count] for key, count in sorted(counted.items())]
        return {key: sorted(value, key=str) for key, value in listed.items()}


def _plain(pod: RawPod) -> Json:
    meta: Json = {"name": pod.metadata.name, "labels": pod.metadata.labels}
    if pod.metadata.deletion_timestamp is not None:
        meta["deletionTimestamp"] = pod.metadata.deletion_timestamp
    return {"metadata": meta, "spec": pod.spec, "status": pod.status}


def _strip(value: Any, key: str = "") -> Any:
    """Replace times, uids and random suffixes of names."""
    if isinstance(value, dict):
        dropped = {"managedFields", "resourceVersion", "namespace", "managedBy"}
        return {name: _strip(each, name) for name, each in value.items() if name not in dropped}
    if isinstance(value, list):
        return [_strip(each, key) for each in value]
    if key.endswith(("Time", "Timestamp", "At")) and value:
        return "<time>"
    if key in ("uid", "succeeded", "failed") and isinstance(value, str):
        return "<uid>"
    if key.endswith("controller-uid"):
        return "<uid>"
    if isinstance(value, str):
        return _POD_NAME.sub(r"\1*", value).replace(f"{OURS}-", "*-").replace(f"{THEIRS}-", "*-")
    return value


def _differences(ours: Json, theirs: Json) -> list[str]:
    """Compare two results line by line."""
    expected, found = (
        json.dumps(each, indent=1, sort_keys=True).splitlines() for each in (theirs, ours)
    )
    return list(difflib.unified_diff(expected, found, THEIRS, OURS, lineterm="", n=4))


async def _prepare(client: Client, runs: Sequence[_Run]) -> None:
    """Create the node and the namespaces, and wait until pods can be created there."""
    await client.create(NODES, {"metadata": {"name": NODE}})
    for run in runs:
        await client.create(NAMESPACES, {"metadata": {"name": run.namespace}})
    async with asyncio.timeout(STEP_TIMEOUT):
        while True:
            accounts = await client.list(SERVICEACCOUNTS, view=dict[str, Any])
            ready = {each["metadata"]["namespace"] for each in accounts.items}
            if ready >= {run.namespace for run in runs}:
                return
            await asyncio.sleep(0.1)


async def _run_all(directory: Path) -> dict[str, list[str]]:
    """Run all scenarios under both controllers; return the differences of each."""
    options = RealKubeOptions(controllers=(*CONTROLLERS, "job", "ttl-after-finished"))
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(real_server(directory, options))
        client = await stack.enter_async_context(server.client())
        manager = await stack.enter_async_context(server.client("controllers"))
        jobs = Informer(client, BATCH_JOBS, RawJob)
        scripts: dict[str, Script] = {}
        kubelet = ScriptedKubelet(client, scripts)
        runs = [
            _Run(client=client, jobs=jobs, kubelet=kubelet, scenario=scenario, side=side)
            for scenario in SCENARIOS
            for side in (OURS, THEIRS)
        ]
        scripts |= {run.namespace: run.script for run in runs}
        await _prepare(client, runs)
        recorder = EventRecorder(manager, component="job-controller")
        controller = BatchJobController(manager, recorder=recorder)
        background = [asyncio.create_task(each) for each in (jobs.run(), recorder.run())]
        try:
            await stack.enter_async_context(kubelet.running())
            await stack.enter_async_context(running(controller))
            ended = await asyncio.gather(*(run.run() for run in runs), return_exceptions=True)
            failures = {
                run.scenario.name: [str(error)]
                for run, error in zip(runs, ended, strict=True)
                if error is not None
            }
            return await _settled_differences(runs) | failures
        finally:
            for task in background:
                task.cancel()
            await asyncio.wait(background)


async def _settled_differences(runs: Sequence[_Run]) -> dict[str, list[str]]:
    """Compare until nothing differs, at most for a minute, then all of them again."""
    pairs = list(zip(runs[::2], runs[1::2], strict=True))
    deadline = asyncio.get_running_loop().time() + SETTLE_TIMEOUT
    different = pairs
    while different and asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(SETTLE_INTERVAL)
        different = [pair for pair in different if await _compare(*pair)]
    await asyncio.sleep(SETTLE_INTERVAL)
    return {ours.scenario.name: await _compare(ours, theirs) for ours, theirs in pairs}


async def _compare(ours: _Run, theirs: _Run) -> list[str]:
    return _differences(*await asyncio.gather(ours.result(), theirs.result()))


@pytest.fixture(scope="module")
def differences(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    return asyncio.run(_run_all(tmp_path_factory.mktemp("batch-jobs")))


@pytest.mark.parametrize("scenario", [each.name for each in SCENARIOS])
def test_objects_equal_those_of_kube_controller_manager(
    differences: dict[str, list[str]], scenario: str
) -> None:
    assert not differences[scenario], "\n".join(differences[scenario])
