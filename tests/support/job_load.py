"""Many small jobs of several kinds, each with the result that it must reach under all faults."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
from support.embedded_apiserver import Server

from batholith.kube.client.client import Client
from batholith.kube.informer.informer import Informer
from batholith.model.base import ApiStruct
from batholith.model.job import Job, JobPhase
from batholith.model.job_defaults import set_defaults
from batholith.model.meta import ObjectMeta
from batholith.model.names import (
    JOB_VERSION,
    JOBS,
    PLACE_AT_CREATION,
    PODS,
    QUEUES,
    SIMULATE_PREFIX,
)

Json = dict[str, Any]

NAMESPACE = "default"
MAX_ACTIVE_JOBS = 40
"""Jobs that have not ended yet while others are submitted."""
FINAL_PHASES = frozenset(
    {JobPhase.COMPLETED, JobPhase.FAILED, JobPhase.TERMINATED, JobPhase.ABORTED}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedJob:
    """One job, and how it must end."""

    name: str
    tasks: Sequence[Json]
    spec: Json
    phase: JobPhase
    succeeded: int
    failed: int
    retries: int = 0
    versions: Sequence[str] = ("0",)
    """Job versions in which all of its pods are created."""
    starts_complete: bool = False
    """Whether no pod may end the job before all exist: they are not created with their node."""

    @property
    def body(self) -> Json:
        """What a user applies, with the defaults that admission fills in."""
        annotations = {PLACE_AT_CREATION: "false"} if self.starts_complete else {}
        content = {
            "apiVersion": JOBS.api_version,
            "kind": JOBS.kind,
            "metadata": {"name": self.name, "namespace": NAMESPACE, "annotations": annotations},
            "spec": {"schedulerName": "volcano", "tasks": list(self.tasks), **self.spec},
        }
        return set_defaults(content, scheduler_name="volcano")

    @property
    def pods(self) -> set[tuple[str, str]]:
        """The pods that must be created, each once: name and job version."""
        return {
            (f"{NAMESPACE}/{self.name}-{task['name']}-{index}", version)
            for version in self.versions
            for task in self.tasks
            for index in range(task["replicas"])
        }


class Pod(ApiStruct, frozen=True):
    """What is read of a pod."""

    metadata: ObjectMeta = ObjectMeta()


def task(
    name: str, replicas: int, *, run_for: str = "500ms~2s", exit_code: int = 0, **more: Any
) -> Json:
    """A task whose pods live by a simulated kubelet."""
    notes = {"run-for": run_for, "exit-code": str(exit_code)}
    container = {
        "name": "main",
        "image": "busybox:1.36",
        "resources": {"requests": {"cpu": "500m"}},
    }
    template = {
        "metadata": {"annotations": {SIMULATE_PREFIX + key: value for key, value in notes.items()}},
        "spec": {"restartPolicy": "Never", "containers": [container]},
    }
    return {"name": name, "replicas": replicas, "template": template, **more}


def completing_job(name: str, pods: int) -> ExpectedJob:
    """Completes when all of its pods have."""
    return ExpectedJob(
        name=name,
        tasks=(task("t", pods),),
        spec={},
        phase=JobPhase.COMPLETED,
        succeeded=pods,
        failed=0,
    )


def failing_job(name: str, pods: int) -> ExpectedJob:
    """Fails, since its pods do and nothing is to be done about it.

    Each pod may start alone: of a gang that was partly bound when its scheduler died, and whose
    first pod has failed since, the rest would wait for ever (as they do for Volcano).
    """
    return ExpectedJob(
        name=name,
        tasks=(task("t", pods, exit_code=2, minAvailable=1),),
        spec={"minAvailable": 1},
        phase=JobPhase.FAILED,
        succeeded=0,
        failed=pods,
    )


def restarting_job(name: str, pods: int) -> ExpectedJob:
    """Restarts whenever a pod fails, which one always does, until its retries are used up."""
    policy = {"event": "PodFailed", "action": "RestartJob"}
    return ExpectedJob(
        name=name,
        tasks=(
            task("bad", 1, run_for="500ms", exit_code=1),
            task("good", pods - 1, run_for="inf"),
        ),
        spec={"policies": [policy], "maxRetry": 2},
        phase=JobPhase.FAILED,
        succeeded=0,
        failed=1,
        retries=2,
        versions=("0", "1"),
        starts_complete=True,
    )


def task_completed_job(name: str, pods: int) -> ExpectedJob:
    """Completes when its first task has, though the other would run for ever."""
    policy = {"event": "TaskCompleted", "action": "CompleteJob"}
    return ExpectedJob(
        name=name,
        tasks=(task("work", 1, policies=[policy]), task("serve", pods - 1, run_for="inf")),
        spec={},
        phase=JobPhase.COMPLETED,
        succeeded=1,
        failed=0,
        starts_complete=True,
    )


def exit_code_job(name: str, pods: int) -> ExpectedJob:
    """Is terminated by the exit code of one pod."""
    policy = {"exitCode": 3, "action": "TerminateJob"}
    return ExpectedJob(
        name=name,
        tasks=(task("bad", 1, exit_code=3), task("good", pods - 1, run_for="inf")),
        spec={"policies": [policy]},
        phase=JobPhase.TERMINATED,
        succeeded=0,
        failed=1,
        starts_complete=True,
    )


SPECIAL_SCRIPTS = (failing_job, restarting_job, task_completed_job, exit_code_job)


def expected_jobs(number: int) -> list[ExpectedJob]:
    """*number* jobs of one to three pods; each fifth is of an odd kind."""
    return [
        SPECIAL_SCRIPTS[n // 5 % len(SPECIAL_SCRIPTS)](f"j{n}", 2 + n % 2)
        if n % 5 == 4
        else completing_job(f"j{n}", 1 + n % 3)
        for n in range(number)
    ]


class JobLoad:
    """Jobs on a server, observed by a separate watch."""

    def __init__(self, server: Server, client: Client, expected: Sequence[ExpectedJob]) -> None:
        self.expected = expected
        self.uids: dict[tuple[str, str], set[str]] = defaultdict(set)
        """By name and version of the job, the pods that there have been."""
        self._server = server
        self._jobs = Informer(client, JOBS, Job)
        self._pods = Informer(client, PODS, Pod)
        self._pods.add_event_handler(self._on_pod)

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        if new is not None:
            meta = new.metadata
            self.uids[meta.key, meta.annotations.get(JOB_VERSION, "")].add(meta.uid)

    async def run(self, ready: asyncio.Event) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for cache in (self._jobs, self._pods):
                tasks.create_task(cache.run())
            await self._jobs.wait_synced()
            await self._pods.wait_synced()
            ready.set()

    async def submit(self) -> None:
        """Create all jobs, each as soon as few enough others are at work."""
        for number, script in enumerate(self.expected):
            while number - self.finished_count >= MAX_ACTIVE_JOBS:  # noqa: ASYNC110 - nothing to wait on
                await asyncio.sleep(0.05)
            await self._create(script)

    async def _create(self, script: ExpectedJob) -> None:
        """Create a job, even if the server is down for a while, or does not know all kinds yet."""
        while True:
            try:
                response = await self._server.request("POST", JOBS.path(NAMESPACE), script.body)
            except aiohttp.ClientError:
                response = None
            if response is not None and response.status in (201, 409):
                return  # 409: the first response was lost
            assert response is None or response.status >= 429 or response.status == 404, (
                response.body
            )
            await asyncio.sleep(0.1)

    @property
    def finished_count(self) -> int:
        """Number of finished jobs."""
        return sum(job.status.state.phase in FINAL_PHASES for job in self._jobs)

    async def wait_finished(self, number: int | None = None, *, seconds: float = 400) -> None:
        """Wait until *count* jobs (default: all) have finished."""
        goal = len(self.expected) if number is None else number

        def phases() -> str:
            left = {
                job.metadata.name: str(job.status.state.phase)
                for job in self._jobs
                if job.status.state.phase not in FINAL_PHASES
            }
            return f"{goal} jobs ended; of {len(left)} others some are {dict([*left.items()][:20])}"

        await eventually(lambda: self.finished_count >= goal, phases, seconds=seconds)

    def mismatches(self) -> list[str]:
        """Jobs that did not end as they should, each in a sentence."""
        result = []
        for script in self.expected:
            job = self._jobs.get(f"{NAMESPACE}/{script.name}")
            if job is None:
                result.append(f"{script.name} is deleted")
                continue
            status = job.status
            got = (status.state.phase, status.succeeded, status.failed, status.retry_count)
            must = (script.phase, script.succeeded, script.failed, script.retries)
            if got != must:
                result.append(
                    f"{script.name}: (phase, succeeded, failed, retries) {got}, not {must}"
                )
        return result

    def expected_pods(self) -> set[tuple[str, str]]:
        """The pods that must have been created, by name and job version."""
        return {pod for script in self.expected for pod in script.pods}


@asynccontextmanager
async def job_load(server: Server, expected: Sequence[ExpectedJob]) -> AsyncIterator[JobLoad]:
    """Watch the jobs of *server* for the length of the block; nothing is submitted yet."""
    async with server.client() as client:
        work, ready = JobLoad(server, client, expected), asyncio.Event()
        watching = asyncio.create_task(work.run(ready))
        try:
            await ready.wait()
            yield work
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)


async def eventually(
    condition: Callable[[], object], what: Callable[[], str], *, seconds: float
) -> None:
    """Wait until *condition* holds, looking at it rarely: others need the processor.

    The limit only keeps a broken test from hanging; *what* then names the missing condition.
    """
    try:
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110 - the world offers no event to wait for
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"did not happen: {what()}") from None


async def wait_default_queue(server: Server) -> None:
    """Wait for the default queue, which the controllers create."""
    path = QUEUES.path(name="default")
    while (await server.request("GET", path)).status != 200:  # noqa: ASYNC110 - nothing to wait on
        await asyncio.sleep(0.05)


async def active_pods(server: Server) -> list[str]:
    """Names of pods that have not ended."""
    found = (await server.get(PODS.path(NAMESPACE)))["items"]
    return [
        pod["metadata"]["name"]
        for pod in found
        if pod["status"]["phase"] not in ("Succeeded", "Failed")
    ]
