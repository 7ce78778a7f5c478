"""What ``batholith demo`` does: a gang that computes, suspended and resumed over REST."""

import asyncio
import contextlib
import shutil
import sys
import tempfile
import time
from importlib import resources
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import typer

from ..kube.client.client import Client
from ..kube.client.config import load_credentials
from ..kube.informer.informer import Informer
from ..local.datadir import DataDir
from ..local.supervisor import ComponentFailedError, Supervisor
from ..model.base import ApiStruct
from ..model.job import Job, JobPhase
from ..model.meta import ObjectMeta
from ..model.names import CONFIGMAPS, JOB_NAME, JOBS, PODS
from . import logs
from .embedded import EmbeddedCluster, Options

NAME, NAMESPACE = "demo", "default"
WORKERS = 3
STEP_TIMEOUT = 60.0
"""Seconds after which the demo gives up on a step."""


class DemoFailedError(Exception):
    """A step did not come about."""


class _PodStatus(ApiStruct, frozen=True):
    phase: str = ""


class _Pod(ApiStruct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    status: _PodStatus = _PodStatus()


def _task_spec(name: str, replicas: int) -> dict[str, Any]:
    script = f'exec "$PYTHON" "$BATHOLITH_ROOT/demo/demo_program.py" {name}'
    container = {
        "name": name,
        "image": "python:3",
        "command": ["sh", "-c", script],
        "env": [{"name": "PYTHON", "value": getattr(sys, "_base_executable", sys.executable)}],
        "resources": {"requests": {"cpu": "1", "memory": "64Mi"}},
        "volumeMounts": [{"name": "program", "mountPath": "/demo"}],
    }
    spec = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 2,
        "containers": [container],
        "volumes": [{"name": "program", "configMap": {"name": NAME}}],
    }
    return {"name": name, "replicas": replicas, "template": {"spec": spec}}


def _job_manifest() -> dict[str, Any]:
    """One master and its workers: all of them start, or none."""
    return {
        "apiVersion": JOBS.api_version,
        "kind": JOBS.kind,
        "metadata": {"name": NAME, "namespace": NAMESPACE},
        "spec": {
            "schedulerName": "volcano",
            "minAvailable": 1 + WORKERS,
            "plugins": {"env": [], "svc": []},
            "tasks": [_task_spec("master", 1), _task_spec("worker", WORKERS)],
        },
    }


class _Progress:
    """Says what happens, with the seconds since the start."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._last = ""

    def report(self, text: str) -> None:
        """One line, unless it was the last one already."""
        if text != self._last:
            typer.echo(f"{time.monotonic() - self._start:5.1f} s  {text}")
            self._last = text


class _JobWatcher:
    """Follows the job and its pods, and shows each change."""

    def __init__(self, client: Client, progress: _Progress) -> None:
        self._progress = progress
        self._changed = asyncio.Event()
        self.jobs = Informer(client, JOBS, Job, namespace=NAMESPACE)
        self.pods = Informer(
            client, PODS, _Pod, namespace=NAMESPACE, label_selector=f"{JOB_NAME}={NAME}"
        )
        self.jobs.add_event_handler(lambda _old, _new: self._on_change())
        self.pods.add_event_handler(lambda _old, _new: self._on_change())

    @property
    def phase(self) -> str:
        """The job's phase."""
        job = self.jobs.get(f"{NAMESPACE}/{NAME}")
        return "" if job is None else job.status.state.phase

    async def wait_for_phase(self, *phases: JobPhase) -> None:
        """Wait until the job is in one of *phases*.

        Raises:
            DemoFailedError: it took too long, or the job ended otherwise.
        """
        ended = {JobPhase.FAILED, JobPhase.TERMINATED, JobPhase.COMPLETED}
        try:
            async with asyncio.timeout(STEP_TIMEOUT):
                while self.phase not in phases:
                    if self.phase in ended:
                        raise DemoFailedError(f"the job ended as {self.phase}")
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise DemoFailedError(f"the job is still {self.phase or 'unseen'}") from None

    def _on_change(self) -> None:
        counts: dict[str, int] = {}
        for pod in self.pods:
            counts[pod.status.phase] = counts.get(pod.status.phase, 0) + 1
        pods = ", ".join(f"{number} {phase}" for phase, number in sorted(counts.items()))
        if self.phase:
            self._progress.report(f"job {self.phase:<11} pods: {pods or 'none'}")
        self._changed.set()


class _Demo:
    """The steps, one after the other."""

    def __init__(self, embedded: EmbeddedCluster, client: Client, *, token: str) -> None:
        self._rest = embedded.rest_url
        self._client = client
        self._headers = {"Authorization": f"Bearer {token}"}
        self.progress = _Progress()
        self._watcher = _JobWatcher(client, self.progress)

    async def run(self) -> None:
        """Apply, suspend, resume, wait for the end, print what the job printed."""
        async with asyncio.TaskGroup() as tasks:
            caches = (self._watcher.jobs, self._watcher.pods)
            running = [tasks.create_task(cache.run()) for cache in caches]
            for cache in caches:
                await cache.wait_synced()
            await self._steps()
            for task in running:
                task.cancel()

    async def _steps(self) -> None:
        program = resources.files(__package__).joinpath("demo_program.py").read_text()
        self.progress.report(f"apply a gang of 1 master and {WORKERS} workers")
        config = {"metadata": {"name": NAME}, "data": {"demo_program.py": program}}
        await self._client.create(CONFIGMAPS, config, namespace=NAMESPACE)
        await self._client.create(JOBS, _job_manifest(), namespace=NAMESPACE)
        await self._watcher.wait_for_phase(JobPhase.RUNNING)
        await self._wait_for_log_text("joined")

        await self._send_command("suspend")
        await self._watcher.wait_for_phase(JobPhase.ABORTED)
        await self._send_command("resume")
        await self._watcher.wait_for_phase(JobPhase.PENDING, JobPhase.RUNNING)
        await self._watcher.wait_for_phase(JobPhase.COMPLETED)

        typer.echo("\nlogs of the master:")
        typer.echo((await self._pod_log("master-0")).rstrip())
        for index in range(WORKERS):
            text = (await self._pod_log(f"worker-{index}")).strip()
            typer.echo(f"log of worker {index}: {text}")

    async def _wait_for_log_text(self, word: str) -> None:
        """Wait until the master has printed *word*: then the gang works."""
        async with asyncio.timeout(STEP_TIMEOUT):
            while word not in await self._pod_log("master-0"):  # noqa: ASYNC110  # a remote log
                await asyncio.sleep(0.05)

    async def _pod_log(self, pod: str) -> str:
        path = PODS.path(NAMESPACE, f"{NAME}-{pod}", "log")
        return bytes(await self._client.get_path(path, view=msgspec.Raw)).decode()

    async def _send_command(self, action: str) -> None:
        """Command the job over REST and wait for the outcome."""
        url = f"{self._rest}/v1/namespaces/{NAMESPACE}/jobs/{NAME}/commands"
        self.progress.report(f'POST {url} {{"action": "{action}"}}')
        async with aiohttp.ClientSession(headers=self._headers) as session:
            async with session.post(url, json={"action": action}) as response:
                answer = await response.json()
                if response.status != 202:
                    raise DemoFailedError(f"REST answered {response.status}: {answer}")
            async with asyncio.timeout(STEP_TIMEOUT):
                while answer["state"] in ("Accepted", "Issued"):
                    await asyncio.sleep(0.05)  # the outcome is read as a user's script would
                    async with session.get(f"{url}/{answer['id']}") as response:
                        answer = await response.json()
        self.progress.report(f"{action}: {answer['state']}, {answer['detail']}")


async def _demo(data: DataDir, embedded: EmbeddedCluster, supervisor: Supervisor) -> None:
    started = time.monotonic()
    ready = asyncio.Event()
    supervising = asyncio.create_task(supervisor.run(ready.set))
    waiting = asyncio.create_task(ready.wait())
    try:
        await asyncio.wait({supervising, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if not ready.is_set():
            supervising.result()
        typer.echo(f"the cluster is ready after {time.monotonic() - started:.1f} s")
        credentials = load_credentials(str(data.kubeconfig))
        async with Client(credentials, user_agent="batholith-demo") as client:
            await _Demo(embedded, client, token=credentials.token).run()
    finally:
        waiting.cancel()
        supervising.cancel()
        with contextlib.suppress(asyncio.CancelledError, ComponentFailedError):
            await supervising


def run() -> None:
    """Run the demo on a cluster of its own, in a folder of its own; say how it went.

    Raises:
        typer.Exit: with 1, when a step did not come about; the folder is kept.
    """
    logs.configure(level="ERROR")
    root = Path(tempfile.mkdtemp(prefix="batholith-demo-"))
    typer.echo(f"starting a cluster in {root}")
    started = time.monotonic()
    data = DataDir(root)
    try:
        data.lock()
        with EmbeddedCluster(data, Options(port=0, api_port=0)) as embedded:
            asyncio.run(_demo(data, embedded, embedded.start_supervisor()))
    except (DemoFailedError, ComponentFailedError, TimeoutError, OSError) as error:
        why = str(error) or "a step took too long"
        typer.echo(f"batholith demo: {why}; its files: {root}", err=True)
        raise typer.Exit(1) from None
    finally:
        data.unlock()
    shutil.rmtree(root)
    typer.echo(
        f"\ndone in {time.monotonic() - started:.1f} s: the gang ran, was suspended, resumed, "
        "and ended Completed; nothing is left running"
    )
