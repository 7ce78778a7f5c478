"""``--kubernetes``: the commands where no REST API is installed.

The application of the REST API runs in this process, with the credentials of the kubeconfig, and
the SDK calls it by function calls: so output and errors are the same. Nothing listens.
"""

import asyncio
import contextlib
import logging
import queue
import tempfile
import threading
from base64 import b64encode
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import httpx
import typer

from ...api.serving.in_process import application
from ...client import Client, ClientError, JobHandle
from ...httpserver.asgi import AsgiApp, Message
from ...kube.client.client import Client as ApiClient
from ...kube.client.config import load_credentials
from ...kube.errors import ApiError, ConnectionLostError, NotSentError
from ...machinery.clock import SystemClock
from ...model.names import CONFIGMAPS, JOBS, SUBMISSION, SUBMISSION_INCOMPLETE
from ..submit.manifest import CHUNK_KEY, Claim, configmap_names
from ..submit.packing import chunks
from .claims import ArchiveStore, ClaimedArchive, ClaimError, find_claim
from .shared import IN_PROCESS, CommandFailedError, key

T = TypeVar("T")

BUFFERED = 64
"""Messages of a response that the application may produce before the first of them is read."""


class _Messages:
    """What the application has sent of a response; it waits while the command does not read."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._slots = asyncio.Semaphore(BUFFERED)
        self._queue: queue.SimpleQueue[Message | BaseException | None] = queue.SimpleQueue()

    async def send(self, message: Message) -> None:
        """Add a message; called in the loop of the application."""
        await self._slots.acquire()
        self._queue.put(message)

    def end(self, error: BaseException | None = None) -> None:
        """Add the end, with the error that has caused it."""
        self._queue.put(error)

    def get(self) -> Message | BaseException | None:
        """Return the next message, an error, or ``None`` at the end; called in another thread."""
        message = self._queue.get()
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._slots.release)
        return message


class InProcessTransport(httpx.BaseTransport):
    """Runs the application in a thread, and passes requests of the SDK to it."""

    def __init__(self, kubeconfig: Path | None, context: str | None, namespace: str) -> None:
        """Start, for one *namespace* or, if that is empty, for all.

        Raises:
            ConfigError: there are no credentials.
            ApiError: the API server rejects them.
            ConnectionLostError: it does not respond.
        """
        path = None if kubeconfig is None else str(kubeconfig)
        credentials = load_credentials(path, context=context)
        logger = logging.getLogger("batholith")
        self._log_level = logger.level
        logger.setLevel(logging.CRITICAL)  # what fails is in the responses
        self._credentials = credentials
        self._namespace = namespace
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._started: Future[AsgiApp] = Future()
        self._client: ApiClient | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        try:
            self._app = self._started.result()
        except BaseException:
            self.close()
            raise

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        except Exception as error:
            if not self._started.done():
                self._started.set_exception(error)
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        with tempfile.TemporaryDirectory(prefix="batholith-") as directory:
            async with (
                ApiClient(self._credentials, user_agent="batholith-cli") as client,
                application(client, self._namespace, Path(directory), clock=SystemClock()) as app,
            ):
                self._client = client
                self._started.set_result(app)
                await self._stop.wait()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Return the response of the application; its body is read as it is produced."""
        messages = _Messages(self._loop)
        body = request.read()
        task = asyncio.run_coroutine_threadsafe(self._call(request, body, messages), self._loop)
        start = messages.get()
        if isinstance(start, BaseException):
            raise start
        if start is None:
            raise httpx.RemoteProtocolError("the application has not responded")
        return httpx.Response(
            start["status"],
            headers=[(name.decode(), value.decode()) for name, value in start["headers"]],
            stream=_Body(messages, task),
        )

    async def _call(self, request: httpx.Request, body: bytes, messages: _Messages) -> None:
        sent = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Message:
            if sent:
                return sent.pop()
            return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

        try:
            await self._app(_scope_of(request), receive, messages.send)
        except Exception as error:
            messages.end(error)
        finally:
            messages.end()

    def find_claim(self, namespace: str, name: str) -> Claim:
        """Return a PersistentVolumeClaim.

        Raises:
            ApiError: it does not exist, or may not be read.
            ConnectionLostError, NotSentError: the API server does not respond.
            ValueError: it has no file system.
        """
        return self._run_here(find_claim(self._started_client, namespace, name))

    def store_in_claim(self, archive: ClaimedArchive, content: bytes) -> None:
        """Store the working directory of a job in a PersistentVolumeClaim.

        Raises:
            ApiError, ClaimError: that is not possible.
            ConnectionLostError, NotSentError: the API server does not respond.
        """
        store = ArchiveStore(self._started_client, self._credentials, archive)
        self._run_here(store.store(content))

    def create_configmaps(self, namespace: str, bodies: Sequence[dict[str, Any]]) -> None:
        """Create ConfigMaps with the rights of the user.

        Raises:
            ApiError: the API server rejects one.
            ConnectionLostError, NotSentError: it does not respond.
        """

        async def create() -> None:
            for body in bodies:
                await self._started_client.create(CONFIGMAPS, body, namespace=namespace)

        self._run_here(create())

    def _run_here(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Return the result of *coroutine*, which is cancelled if this thread is interrupted."""
        running = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return running.result()
        except KeyboardInterrupt:
            running.cancel()
            raise

    def complete_submission(self, job: JobHandle, *, hold: bool) -> None:
        """Let a job begin that was created suspended, unless it is to be held.

        Raises:
            ApiError: the API server rejects it.
            ConnectionLostError, NotSentError: it does not respond.
        """
        patch = {
            "metadata": {"uid": job.uid, "labels": {SUBMISSION: None}},
            "spec": {"suspend": True if hold else None},
        }
        self._run_here(self._started_client.patch(JOBS, job.name, patch, namespace=job.namespace))

    @property
    def _started_client(self) -> ApiClient:
        assert self._client is not None  # noqa: S101
        return self._client

    def close(self) -> None:
        """Stop the application."""
        with contextlib.suppress(RuntimeError):  # its loop has ended
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(5)
        logging.getLogger("batholith").setLevel(self._log_level)


class KubernetesClient(Client):
    """The SDK with the application in this process."""

    def __init__(self, transport: InProcessTransport, namespace: str) -> None:
        super().__init__(
            IN_PROCESS,
            token="unused",  # noqa: S106 - the application has one user
            namespace=namespace,
            transport=transport,
        )
        self.transport = transport


def submit_packed(
    client: Client, manifest: Mapping[str, Any], archive: bytes, claim: Claim | None
) -> JobHandle:
    """Create a job, and then store its working directory: in ConfigMaps, which it owns, or a claim.

    Until that is stored the job is suspended: if this process is killed in between, no pods wait
    for what nothing creates.

    Raises:
        CommandFailedError: they cannot be created; the job is deleted again.
    """
    assert isinstance(client, KubernetesClient)  # noqa: S101 - others pack nothing
    job = client.jobs.submit(_suspended(manifest))
    try:
        if claim is None:
            client.transport.create_configmaps(job.namespace, _configmaps(job, archive))
        else:
            stored = ClaimedArchive(claim, job.namespace, job.name, job.uid, _image(manifest))
            size = f"{len(archive) / 2**20:.1f} MiB"
            typer.echo(f"batholith: storing {size} in claim {claim.name}", err=True)
            client.transport.store_in_claim(stored, archive)
        hold = bool(manifest["spec"].get("suspend"))
        client.transport.complete_submission(job, hold=hold)
    except KeyboardInterrupt:
        job.delete()
        raise
    except (ApiError, ClaimError, ConnectionLostError, NotSentError) as error:
        text = f"the working directory cannot be stored: {error}; use --no-workdir"
        try:
            job.delete()
        except ClientError as failure:
            raise CommandFailedError(f"{text}; delete {key(job)}: {failure}") from None
        raise CommandFailedError(f"{text}; {key(job)} is deleted again") from None
    return job


def _suspended(manifest: Mapping[str, Any]) -> dict[str, Any]:
    metadata = manifest["metadata"]
    labels = {**metadata.get("labels", {}), SUBMISSION: SUBMISSION_INCOMPLETE}
    spec = {**manifest["spec"], "suspend": True}
    return {**manifest, "metadata": {**metadata, "labels": labels}, "spec": spec}


def _image(manifest: Mapping[str, Any]) -> str:
    """Return the image that unpacks the working directory."""
    pod = manifest["spec"]["tasks"][0]["template"]["spec"]
    image: str = pod["initContainers"][0]["image"]
    return image


def _configmaps(job: JobHandle, archive: bytes) -> list[dict[str, Any]]:
    owner = {
        "apiVersion": JOBS.api_version,
        "kind": JOBS.kind,
        "name": job.name,
        "uid": job.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }
    names = configmap_names(job.name, archive)
    return [
        {
            "metadata": {"name": name, "ownerReferences": [owner]},
            "immutable": True,
            "binaryData": {CHUNK_KEY: b64encode(chunk).decode()},
        }
        for name, chunk in zip(names, chunks(archive), strict=True)
    ]


class _Body(httpx.SyncByteStream):
    """The body of a response; closing it cancels the request."""

    def __init__(self, messages: _Messages, task: "Future[None]") -> None:
        self._messages = messages
        self._task = task

    def __iter__(self) -> Iterator[bytes]:
        while (message := self._messages.get()) is not None:
            if isinstance(message, BaseException):
                raise httpx.ReadError(str(message))
            yield message.get("body", b"")
            if not message.get("more_body", False):
                return

    def close(self) -> None:
        self._task.cancel()


def _scope_of(request: httpx.Request) -> dict[str, Any]:
    headers = [(name.lower(), value) for name, value in request.headers.raw]
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": "http",
        "path": request.url.path,
        "raw_path": request.url.raw_path.partition(b"?")[0],
        "root_path": "",
        "query_string": request.url.query,
        "headers": headers,
        "client": None,
        "server": None,
        "state": {},
    }
