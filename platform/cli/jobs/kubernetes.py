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
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import httpx
import typer

from ...api.serving.in_process import application
from ...client import Client, JobHandle
from ...httpserver.asgi import AsgiApp, Message
from ...kube.client.client import Client as ApiClient
from ...kube.client.config import load_credentials
from ...kube.errors import ApiError, ConnectionLostError, NotSentError
from ...machinery.clock import SystemClock
from ..submit.manifest import Claim
from .claims import ArchiveStore, ClaimedArchive, ClaimError, find_claim
from .shared import IN_PROCESS, CommandFailedError

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

    def store_in_claim(self, job: JobHandle, archive: bytes, claim: Claim, image: str) -> None:
        """Store the working directory of a job in a PersistentVolumeClaim, by a pod of *image*.

        Raises:
            CommandFailedError: that is not possible, or the API server does not respond.
        """
        typer.echo(
            f"batholith: storing {len(archive) / 2**20:.1f} MiB in claim {claim.name}", err=True
        )
        target = ClaimedArchive(claim, job.namespace, job.name, job.uid, image)
        store = ArchiveStore(self._started_client, self._credentials, target)
        try:
            self._run_here(store.store(archive))
        except (ApiError, ClaimError, ConnectionLostError, NotSentError) as error:
            raise CommandFailedError(str(error)) from None

    def _run_here(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Return the result of *coroutine*, which is cancelled if this thread is interrupted."""
        running = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return running.result()
        except KeyboardInterrupt:
            running.cancel()
            raise

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
