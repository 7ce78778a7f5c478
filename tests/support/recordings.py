"""Replays recorded scenarios on a whole cluster in the test's process, and watches what follows."""

import asyncio
import json
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from support.api_servers import ServerFactory, add_namespace
from support.embedded_apiserver import MERGE, Server
from support.running_controller import running
from support.scenario_results import Json, NamespaceRecord, scenario_result

from batholith.admission import WEBHOOKS
from batholith.cron_ctrl import volcano
from batholith.cron_ctrl.controller import CronJobController, CronJobSettings
from batholith.flow_ctrl.controller import JobFlowController
from batholith.flow_ctrl.template_controller import JobTemplateController
from batholith.job_ctrl.controller import JobController
from batholith.job_ctrl.settings import JobSettings
from batholith.kube.client.events import EventRecorder
from batholith.local.agent.service import Agent
from batholith.local.agent.settings import AgentSettings, SimulationSettings
from batholith.machinery.testing import FakeClock
from batholith.model import crds, names
from batholith.model.admission import Webhook
from batholith.podgroup_ctrl.controller import PodGroupController
from batholith.queue_ctrl.controller import QueueController
from batholith.scheduler import conf
from batholith.scheduler.scheduler import Scheduler, SchedulerSettings

DATA = Path(__file__).parents[1] / "data" / "recorded"
COMPONENT_TIME_SCALE = 0.3
"""Duration of a recorded second for all components but the agent, in seconds."""

TICK, BUSY_THRESHOLD = 0.05, 0.2
"""Recorded seconds that pass at once; seconds for a request when there is little to do."""

START, STOP = 0.5, 1.5
"""Seconds from binding to running, and from a deletion to the end, of the recorded kubelet."""

STEP_DELAY = 0.2
"""Recorded seconds from one object to the next."""

STEP_TIMEOUT = 120.0
"""Recorded seconds until a scenario counts as having got stuck."""

TOKEN = "kube-api-access-"
"""How the names of volumes begin that hold a service account's token."""

UNSAFE_CHARACTERS = re.compile(r"[^a-z0-9]")
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
RESOURCES = {
    one.kind: one
    for one in (
        names.JOBS, names.CRONJOBS, names.PODGROUPS, names.QUEUES, names.PODS,
        names.PRIORITYCLASSES, names.CONFIGMAPS, names.SERVICES, names.SECRETS,
        names.NETWORKPOLICIES, names.PERSISTENTVOLUMECLAIMS, names.NODES, names.JOBFLOWS,
        names.JOBTEMPLATES,
    )
}  # fmt: skip
WORKLOADS = {
    ("apps/v1", "Deployment"): names.Resource("apps", "v1", "deployments", "Deployment"),
    ("apps/v1", "ReplicaSet"): names.Resource("apps", "v1", "replicasets", "ReplicaSet"),
    ("apps/v1", "StatefulSet"): names.Resource("apps", "v1", "statefulsets", "StatefulSet"),
    ("batch/v1", "Job"): names.Resource("batch", "v1", "jobs", "Job"),
}
"""Kubernetes' own kinds by version; not watched here."""

COMMAND_RESOURCES = {
    "vcjob": names.JOBS, "podgroup": names.PODGROUPS, "queue": names.QUEUES, "pod": names.PODS,
    "node": names.NODES, "service": names.SERVICES, "configmap": names.CONFIGMAPS,
    "deployment": WORKLOADS["apps/v1", "Deployment"],
}  # fmt: skip
WATCHED = tuple(kind for kind in RESOURCES if kind not in ("Node", "PriorityClass"))


def load_recordings(name: str) -> list[Json]:
    """The recordings in the file *name*, one a line."""
    return [json.loads(line) for line in (DATA / name).read_text().splitlines()]


class ReplayClock:
    """Clock of the recorded cluster; it runs slower the busier the cluster is.

    A recorded second is as long as the cluster needs to react as quickly as the recorded one did,
    be the machine ever so slow: what the simulated containers do keeps its order.
    """

    def __init__(self) -> None:
        self.scenario_clock = FakeClock(datetime.now(UTC))
        """For the agent and the steps: in recorded seconds."""
        self.component_clock = FakeClock(datetime.now(UTC))
        """For everything else."""
        self.schedule_clock = FakeClock(datetime.now(UTC))
        """For CronJobs; it moves only when a test moves it."""

    async def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait for what the cluster does; fail when it does not."""
        limit = self.scenario_clock.monotonic() + STEP_TIMEOUT
        while not condition():
            if self.scenario_clock.monotonic() > limit:
                raise AssertionError(f"did not happen: {what}")
            await asyncio.sleep(0.01)

    async def run(self, server: Server) -> None:
        """Let time pass until cancelled."""
        clock = asyncio.get_running_loop().time
        while True:
            before = clock()
            await server.get("/api/v1/namespaces/default")
            await asyncio.sleep(0.01)
            passed = TICK * min(1.0, BUSY_THRESHOLD / (clock() - before))
            self.scenario_clock.tick(passed)
            self.component_clock.tick(passed * COMPONENT_TIME_SCALE)


class RecordedCluster:
    """A cluster of four simulated nodes with all components, and the observed changes."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.time = ReplayClock()
        self._records: dict[str, NamespaceRecord] = defaultdict(NamespaceRecord)
        self._objects: dict[str, dict[tuple[str, str], Json]] = defaultdict(dict)

    def record(self, namespace: str) -> NamespaceRecord:
        """What was seen so far of a namespace and of all that is in none."""
        reported = self._records[namespace]
        final: dict[str, list[Json]] = defaultdict(list)
        for scope in (namespace, ""):
            for (kind, _), seen in self._objects[scope].items():
                final[kind].append(_final_object(seen))
        timeline = reported.timeline + self._records[""].timeline
        account = NamespaceRecord(
            reported.apply_results, timeline, reported.created, final, reported.events
        )
        text = msgspec.json.encode(account).decode().replace(namespace, "<ns>")
        return msgspec.json.decode(text, type=NamespaceRecord)

    def change_count(self, namespace: str) -> int:
        """How much was seen so far of what `record` returns."""
        own, others = self._records[namespace], self._records[""]
        count = len(own.apply_results) + len(own.timeline) + len(own.events)
        return count + len(others.timeline)

    def phase(self, namespace: str, job: str) -> str:
        """The phase of a job, empty when there is none."""
        seen = self._objects[namespace].get(("Job", job), {})
        return str(((seen.get("status") or {}).get("state") or {}).get("phase", ""))

    def has_starting_pods(self, namespace: str) -> bool:
        """Whether pods are bound that do not run yet."""
        return any(
            kind == "Pod" and seen["spec"].get("nodeName") and seen["status"]["phase"] == "Pending"
            for (kind, _), seen in self._objects[namespace].items()
        )

    def queue_state(self, name: str) -> str:
        """The state of a queue, empty when there is none."""
        seen = self._objects[""].get(("Queue", name), {})
        return str((seen.get("status") or {}).get("state", ""))

    def uids(self, namespace: str, kind: str, name: str = "") -> set[str]:
        """The uids of the objects of *kind*, or of the one named *name*."""
        return {
            seen["metadata"]["uid"]
            for key, seen in self._objects[namespace].items()
            if key == (kind, name or key[1])
        }

    async def watch(self, kind: str, started: asyncio.Event) -> None:
        """Take down what happens to all objects of *kind*, until cancelled."""
        resource = RESOURCES[kind]
        async with self.server.watch(f"{resource.path()}?watch=1") as lines:
            started.set()
            while True:
                result = await lines.next(timeout=600)
                self._record_object(result["type"], kind, result["object"])

    async def watch_events(self, started: asyncio.Event) -> None:
        """Record events until cancelled."""
        async with self.server.watch(f"{names.EVENTS.path()}?watch=1") as lines:
            started.set()
            while True:
                reported = (await lines.next(timeout=600))["object"]
                about = reported["involvedObject"]
                line = [about["kind"], reported["type"], reported["reason"], reported["message"]]
                self._records[reported["metadata"]["namespace"]].events.append(line)

    def _record_object(self, type_: str, kind: str, seen: Json) -> None:
        meta = seen["metadata"]
        namespace, key = meta.get("namespace", ""), (kind, meta["name"])
        seen = {"kind": kind, **seen}
        entry: Json = {"kind": kind, "name": meta["name"]}
        timeline = self._records[namespace].timeline
        if type_ == "ADDED":
            timeline.append({**entry, "what": "made"})
            self._records[namespace].created[kind].append(_without_generated_fields(seen))
        if type_ == "DELETED":
            timeline.append({**entry, "what": "gone"})
            self._objects[namespace].pop(key, None)
            return
        self._objects[namespace][key] = seen
        status = seen.get("status") or {}
        if kind == "Pod":
            leaving = {"terminating": True} if meta.get("deletionTimestamp") else {}
            timeline.append({**entry, "phase": status["phase"], **leaving})
        else:
            timeline.append({**entry, "status": status})


def _without_generated_fields(seen: Json) -> Json:
    """The object as the recordings have it: without status and the service account's mount."""
    kept = {key: value for key, value in seen.items() if key != "status"}
    if seen["kind"] == "Pod":
        spec = kept["spec"]
        containers = [_without_token_volume(each) for each in spec["containers"]]
        kept["spec"] = _without_token_volume({**spec, "containers": containers}, key="volumes")
    return kept


def _without_token_volume(holder: Json, *, key: str = "volumeMounts") -> Json:
    others = [each for each in holder.get(key, ()) if not each["name"].startswith(TOKEN)]
    rest = {name: value for name, value in holder.items() if name != key}
    return {**rest, key: others} if others else rest


def _final_object(seen: Json) -> Json:
    """What the recordings keep of an object that is there at the end."""
    status = seen.get("status") or {}
    meta = seen["metadata"]
    kept = {
        "name": meta["name"],
        "labels": meta.get("labels"),
        "annotations": meta.get("annotations"),
        "spec": seen.get("spec") or {},
        "status": status,
    }
    if seen["kind"] == "Pod":
        kept |= {
            "bound": bool(seen["spec"].get("nodeName")),
            "phase": status["phase"],
            "conditions": status.get("conditions"),
        }
    return kept


@asynccontextmanager
async def recorded_cluster(
    servers: ServerFactory,
    directory: Path,
    *,
    least_run: float = 0.0,
    webhooks: Sequence[Webhook] = WEBHOOKS,
    scheduler_conf: str = conf.DEFAULT,
) -> AsyncIterator[RecordedCluster]:
    """A cluster for the length of the block, whose containers run at least so long."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(
            servers.start(directory, webhooks=webhooks, crds=crds.load())
        )
        users = ("controllers", "scheduler", "agent")
        manager, planner, kubelet = [
            await stack.enter_async_context(server.client(user)) for user in users
        ]
        recorder = EventRecorder(manager, component="vc-controller-manager")
        events = EventRecorder(planner, component="volcano")
        simulated = SimulationSettings(
            nodes=4, prefix="node", start_delay=START, stop_delay=STOP, min_run=least_run
        )
        nodes = AgentSettings(data_dir=directory, simulation=simulated)
        it = RecordedCluster(server)
        clock = it.time.component_clock
        soon = JobSettings(pvc_recheck_interval=0.2)
        components = (
            QueueController(manager, clock=clock, recorder=recorder),
            PodGroupController(manager, clock=clock, recorder=recorder),
            JobController(manager, settings=soon, clock=clock, recorder=recorder),
            JobFlowController(manager, clock=clock, recorder=recorder),
            JobTemplateController(manager, clock=clock),
            CronJobController(
                manager,
                volcano.KIND,
                settings=CronJobSettings(time_zone=UTC),
                clock=it.time.schedule_clock,
                recorder=recorder,
            ),
            Scheduler(
                planner,
                settings=SchedulerSettings(conf=scheduler_conf),
                clock=clock,
                recorder=events,
            ),
            Agent(kubelet, settings=nodes, clock=it.time.scenario_clock),
        )
        background = await _start_watches(it)
        background += [asyncio.create_task(one.run()) for one in (recorder, events)]
        background.append(asyncio.create_task(it.time.run(server)))
        for component in components:
            await stack.enter_async_context(running(component))
        await it.time.until(lambda: it.queue_state("default") == "Open", "an open default queue")
        yield it
        for task in background:
            task.cancel()
        await asyncio.wait(background)


async def _start_watches(cluster: RecordedCluster) -> list[asyncio.Task[None]]:
    signals = [asyncio.Event() for _ in range(len(WATCHED) + 1)]
    tasks = [
        asyncio.create_task(cluster.watch(kind, signal))
        for kind, signal in zip(WATCHED, signals, strict=False)
    ]
    tasks.append(asyncio.create_task(cluster.watch_events(signals[-1])))
    for signal in signals:
        await signal.wait()
    return tasks


@dataclass(slots=True)
class Replay:
    """One scenario in its own namespace."""

    cluster: RecordedCluster
    scenario: Json
    namespace: str = ""
    queues: frozenset[str] = field(default_factory=frozenset)

    def __post_init__(self) -> None:
        self.namespace = "scene-" + UNSAFE_CHARACTERS.sub("-", self.scenario["name"].lower())[
            -50:
        ].strip("-")
        applied = [each for step in self.scenario["steps"] for each in step.get("apply", [])]
        self.queues = frozenset(
            each["metadata"]["name"] for each in applied if each["kind"] == "Queue"
        )

    @property
    def result(self) -> Json:
        """Return the changes so far."""
        return scenario_result(self.cluster.record(self.namespace), queues=self.queues)

    async def delete_jobs(self) -> None:
        """Delete all jobs, and wait until their pods are deleted."""
        for resource in (*WORKLOADS.values(), names.JOBS, names.PODGROUPS, names.PODS):
            await self.cluster.server.request("DELETE", self._path(resource))
        await self.cluster.time.until(
            lambda: not self.cluster.uids(self.namespace, "Pod"), f"{self.namespace}: pods deleted"
        )

    async def run(self) -> None:
        """Do all steps."""
        await add_namespace(self.cluster.server, self.namespace)
        for step in self.scenario["steps"]:
            await self._step(step)

    async def _step(self, step: Json) -> None:
        for what, given in step.items():
            match what:
                case "apply":
                    for body in given:
                        await self._apply(body)
                case "until":
                    await self._wait_phase(given)
                case "sleep":
                    await self.cluster.time.scenario_clock.sleep(given)
                case "command":
                    await self._command(given, *step["target"])
                case "patch":
                    await self._patch(*given, form=STRATEGIC if given[0] == "node" else MERGE)
                case "jsonpatch":
                    await self._patch(*given, form=JSON_PATCH)
                case "delete":
                    await self._delete(*given)

    async def _wait_phase(self, given: Json) -> None:
        phases = [given["phase"]] if isinstance(given["phase"], str) else given["phase"]
        job = given["job"]
        await self.cluster.time.until(
            lambda: self.cluster.phase(self.namespace, job) in phases,
            f"{self.namespace}: {job} in {phases}",
        )
        # The recorded kubelet starts the pods of a gang at one moment.
        await self.cluster.time.until(
            lambda: not self.cluster.has_starting_pods(self.namespace),
            f"{self.namespace}: all started",
        )

    def _record_apply(self, kind: str, name: str, *, status: int, body: Any) -> None:
        fate: Json = {"kind": kind, "name": name, "ok": status < 300}
        if not fate["ok"]:
            fate["error"] = body["message"]
        self.cluster._records[self.namespace].apply_results.append(fate)

    def _path(self, resource: names.Resource, name: str = "") -> str:
        return resource.path(self.namespace if resource.namespaced else "", name)

    async def _apply(self, body: Json) -> None:
        # The recorded controllers observed one object before the next was created.
        await self.cluster.time.scenario_clock.sleep(STEP_DELAY)
        kind = body["kind"]
        resource = WORKLOADS.get((body["apiVersion"], kind)) or RESOURCES[kind]
        path = self._path(resource) + "?fieldValidation=Strict"
        response = await self.cluster.server.request("POST", path, body)
        name = body["metadata"]["name"]
        self._record_apply(kind, name, status=response.status, body=response.body)

    async def _command(self, action: str, resource_name: str, name: str) -> None:
        target = await self.cluster.server.get(self._path(COMMAND_RESOURCES[resource_name], name))
        owner = {key: target[key] for key in ("apiVersion", "kind")}
        owner |= {"name": name, "uid": target["metadata"]["uid"], "controller": True}
        meta = {"generateName": f"{name}-", "ownerReferences": [owner]}
        body = {
            "apiVersion": names.COMMANDS.api_version,
            "kind": "Command",
            "metadata": meta,
            "action": action,
            "target": owner,
        }
        await self.cluster.server.create(self._path(names.COMMANDS), body)

    async def _patch(self, resource_name: str, name: str, change: Any, *, form: str) -> None:
        path = self._path(COMMAND_RESOURCES[resource_name], name)
        response = await self.cluster.server.request("PATCH", path, change, content_type=form)
        if response.status >= 300:
            self._record_apply("patch", name, status=response.status, body=response.body)

    async def _delete(self, resource_name: str, name: str) -> None:
        resource = COMMAND_RESOURCES[resource_name]
        content = "" if name == "--all" else name
        old_uids = self.cluster.uids(self.namespace, resource.kind, content)
        response = await self.cluster.server.request("DELETE", self._path(resource, content))
        assert response.status < 300, response.body
        await self.cluster.time.until(
            lambda: not old_uids & self.cluster.uids(self.namespace, resource.kind),
            f"{self.namespace}: {resource_name} {name} deleted",
        )
