"""``batholith demo``: run a gang job, and suspend and resume it over REST."""

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
from ..local.supervisor.child_process import Entry
from ..local.supervisor.datadir import DataDir
from ..local.supervisor.supervisor import ComponentFailedError, Supervisor
from ..model.base import ApiStruct
from ..model.job import FINAL_PHASES, Job, JobPhase
from ..model.meta import ObjectMeta
from ..model.names import CONFIGMAPS, JOB_NAME, JOBS, PODS
from ..model.pod import PodPhaseStatus
from . import logs
from .embedded import EmbeddedCluster, Options

NAME, NAMESPACE = "demo", "default"
WORKERS = 3
STEP_TIMEOUT = 60.0
"""Timeout of a step in seconds."""


class DemoFailedError(Exception):
    """A step failed or timed out."""


class _Pod(ApiStruct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    status: PodPhaseStatus = PodPhaseStatus()


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
    """Return the manifest: one master and its workers, which start together or not at all."""
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
    """Prints progress with the seconds since the start."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._last = ""

    def report(self, text: str) -> None:
        """Print *text* unless it repeats the last line."""
        if text != self._last:
            typer.echo(f"{time.monotonic() - self._start:5.1f} s  {text}")
            self._last = text


class _JobWatcher:
    """Watches the job and its pods, and prints each change."""

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
        """Return the job's phase."""
        job = self.jobs.get(f"{NAMESPACE}/{NAME}")
        return "" if job is None else job.status.state.phase

    async def wait_for_phase(self, *phases: JobPhase) -> None:
        """Wait until the job is in one of *phases*.

        Raises:
            DemoFailedError: timeout, or the job finished in another phase.
        """
        try:
            async with asyncio.timeout(STEP_TIMEOUT):
                while self.phase not in phases:
                    if self.phase in FINAL_PHASES:
                        raise DemoFailedError(f"the job finished in phase {self.phase}")
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise DemoFailedError(f"timeout: the job is {self.phase or 'not observed'}") from None

    def _on_change(self) -> None:
        counts: dict[str, int] = {}
        for pod in self.pods:
            counts[pod.status.phase] = counts.get(pod.status.phase, 0) + 1
        pods = ", ".join(f"{number} {phase}" for phase, number in sorted(counts.items()))
        if self.phase:
            self._progress.report(f"job {self.phase:<11} pods: {pods or 'none'}")
        self._changed.set()


class _Demo:
    """The steps of the demo."""

    def __init__(self, embedded: EmbeddedCluster, client: Client, *, token: str) -> None:
        self._rest = embedded.rest_url
        self._client = client
        self._headers = {"Authorization": f"Bearer {token}"}
        self.progress = _Progress()
        self._watcher = _JobWatcher(client, self.progress)

    async def run(self) -> None:
        """Apply the job, suspend and resume it, wait for completion, print its logs."""
        async with asyncio.TaskGroup() as tasks:
            informers = (self._watcher.jobs, self._watcher.pods)
            running = [tasks.create_task(informer.run()) for informer in informers]
            for informer in informers:
                await informer.wait_synced()
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

    async def _wait_for_log_text(self, text: str) -> None:
        """Wait until the master has printed *text*: then the gang is working."""
        async with asyncio.timeout(STEP_TIMEOUT):
            while text not in await self._pod_log("master-0"):  # noqa: ASYNC110  # a remote log
                await asyncio.sleep(0.05)

    async def _pod_log(self, pod: str) -> str:
        path = PODS.path(NAMESPACE, f"{NAME}-{pod}", "log")
        return bytes(await self._client.get_path(path, view=msgspec.Raw)).decode()

    async def _send_command(self, action: str) -> None:
        """Send a command over REST and wait for its outcome."""
        url = f"{self._rest}/v1/namespaces/{NAMESPACE}/jobs/{NAME}/commands"
        self.progress.report(f'POST {url} {{"action": "{action}"}}')
        async with aiohttp.ClientSession(headers=self._headers) as session:
            async with session.post(url, json={"action": action}) as response:
                command = await response.json()
                if response.status != 202:
                    raise DemoFailedError(f"the REST API returned {response.status}: {command}")
            async with asyncio.timeout(STEP_TIMEOUT):
                while command["state"] in ("Accepted", "Issued"):
                    await asyncio.sleep(0.05)  # Poll as a user's script would.
                    async with session.get(f"{url}/{command['id']}") as response:
                        command = await response.json()
        self.progress.report(f"{action}: {command['state']}, {command['detail']}")


async def _demo(data: DataDir, embedded: EmbeddedCluster, supervisor: Supervisor) -> None:
    started = time.monotonic()
    ready = asyncio.Event()
    supervision = asyncio.create_task(supervisor.run(ready.set))
    readiness = asyncio.create_task(ready.wait())
    try:
        await asyncio.wait({supervision, readiness}, return_when=asyncio.FIRST_COMPLETED)
        if not ready.is_set():
            supervision.result()
        typer.echo(f"the cluster is ready after {time.monotonic() - started:.1f} s")
        credentials = load_credentials(str(data.kubeconfig))
        async with Client(credentials, user_agent="batholith-demo") as client:
            await _Demo(embedded, client, token=credentials.token).run()
    finally:
        readiness.cancel()
        supervision.cancel()
        with contextlib.suppress(asyncio.CancelledError, ComponentFailedError):
            await supervision


def run(entry: Entry) -> None:
    """Run the demo on a temporary cluster in a temporary directory; see ``start_supervisor``.

    Raises:
        typer.Exit: with 1, if a step failed; the directory is kept.
    """
    logs.configure(level="ERROR")
    root = Path(tempfile.mkdtemp(prefix="batholith-demo-"))
    typer.echo(f"starting a cluster in {root}")
    started = time.monotonic()
    data = DataDir(root)
    try:
        data.lock()
        with EmbeddedCluster(data, Options(port=0, api_port=0)) as embedded:
            asyncio.run(_demo(data, embedded, embedded.start_supervisor(entry)))
    except (DemoFailedError, ComponentFailedError, TimeoutError, OSError) as error:
        reason = str(error) or "timeout"
        typer.echo(f"batholith demo: {reason}; data directory: {root}", err=True)
        raise typer.Exit(1) from None
    finally:
        data.unlock()
    shutil.rmtree(root)
    typer.echo(
        f"\ndone in {time.monotonic() - started:.1f} s: the gang ran, was suspended and "
        "resumed, and completed; the cluster is stopped"
    )
