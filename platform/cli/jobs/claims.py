"""Archives of working directories in a PersistentVolumeClaim.

A pod mounts the claim while the archive is sent to it by exec, with the rights of the user. It runs
the image of the job, so it writes as the same user as the job's pods read. Directories of jobs that
were deleted are removed then.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from ...kube.client.client import Client
from ...kube.client.config import Credentials
from ...kube.client.pod_streams import open_pod_stream
from ...kube.errors import NotFoundError
from ...kube.supervision import cancel_and_wait
from ...model.base import ApiStruct
from ...model.meta import Condition, ObjectMeta
from ...model.names import JOBS, PERSISTENTVOLUMECLAIMS, PODS
from ..submit.manifest import Claim

START_TIMEOUT = 300
"""Seconds until the pod must run; it may have to pull the image."""
LIFETIME = 1800
"""Seconds after which the pod ends, if this process could not delete it."""
_BLOCK = 32 * 1024
_MAX_REMOVED = 200
"""Directories that one submission removes."""
_USER_AGENT = "batholith-cli"
_MOUNT_PATH = "/var/run/batholith-claim"
_NOT_STARTING = {
    *("CreateContainerConfigError", "CreateContainerError"),
    *("ErrImageNeverPull", "ImagePullBackOff", "InvalidImageName"),
}
"""Reasons for which a container waits after an error."""
_JOB_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")

_LIST = 'if [ -d "$1" ]; then ls -A "$1"; fi'
_REMOVE = 'cd "$1" && shift && rm -rf -- "$@"'
# Submissions with images of other users create directories in the same parent.
_STORE = """\
parent="${1%/*}"
mkdir -p "$parent" || exit 1
chmod 1777 "${parent%/*}" "$parent" 2>/dev/null
umask 077
mkdir -p "$1" && head -c "$2" > "$1/.partial" || exit 1
[ "$(wc -c < "$1/.partial")" -eq "$2" ] || { echo "it is not complete" >&2; exit 1; }
mv "$1/.partial" "$1/archive"
"""


class ClaimError(Exception):
    """The working directory cannot be stored in the claim; the message is for people."""


@dataclass(frozen=True, slots=True)
class ClaimedArchive:
    """The archive of a job that is to be stored in a claim."""

    claim: Claim
    namespace: str
    job: str
    job_uid: str
    image: str
    """Has a shell and tar, as the job needs them, too."""


class _ClaimSpec(ApiStruct, frozen=True):
    volume_mode: str = "Filesystem"


class _ClaimView(ApiStruct, frozen=True):
    metadata: ObjectMeta
    spec: _ClaimSpec = _ClaimSpec()


class _Waiting(ApiStruct, frozen=True):
    reason: str = ""
    message: str = ""


class _State(ApiStruct, frozen=True):
    waiting: _Waiting | None = None


class _Container(ApiStruct, frozen=True):
    state: _State = _State()


class _PodStatus(ApiStruct, frozen=True):
    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: tuple[Condition, ...] = ()
    container_statuses: tuple[_Container, ...] = ()

    @property
    def waiting(self) -> list[_Waiting]:
        """Why containers wait."""
        return [each.state.waiting for each in self.container_statuses if each.state.waiting]


class _Pod(ApiStruct, frozen=True):
    status: _PodStatus = _PodStatus()


class _Named(ApiStruct, frozen=True):
    metadata: ObjectMeta


async def find_claim(client: Client, namespace: str, name: str) -> Claim:
    """Return a PersistentVolumeClaim.

    Raises:
        ApiError: it does not exist, or may not be read.
        ValueError: it has no file system.
    """
    found = await client.get(PERSISTENTVOLUMECLAIMS, name, namespace=namespace, view=_ClaimView)
    if found.spec.volume_mode != "Filesystem":
        text = f"PersistentVolumeClaim {name} has the volumeMode {found.spec.volume_mode}"
        raise ValueError(f"{text}, and no file system")
    return Claim(name, found.metadata.uid)


class ArchiveStore:
    """Stores one archive."""

    def __init__(self, client: Client, credentials: Credentials, archive: ClaimedArchive) -> None:
        self._client, self._credentials, self._archive = client, credentials, archive
        self._pod = f"{archive.job}-workdir"
        self._directory = f"{_MOUNT_PATH}/{archive.claim.directory}"
        self._status = _PodStatus()

    async def store(self, content: bytes) -> None:
        """Store *content*; remove directories of jobs that do not exist any more.

        Raises:
            ApiError, ConnectionLostError, NotSentError, ClaimError: that is not possible.
        """
        async with self._running_pod():
            await self._remove_stale()
            path = f"{self._directory}/{self._archive.job}"
            await self._execute(_STORE, path, str(len(content)), content=content)

    @asynccontextmanager
    async def _running_pod(self) -> AsyncIterator[None]:
        namespace = self._archive.namespace
        await self._client.create(PODS, self._manifest(), namespace=namespace)
        try:
            await self._wait_running()
            yield
        finally:
            with suppress(NotFoundError):
                await self._client.delete(PODS, self._pod, namespace=namespace)

    def _manifest(self) -> dict[str, Any]:
        archive = self._archive
        # Not the controller of the pod: the job would count it with its pods.
        owner = {
            "apiVersion": JOBS.api_version,
            "kind": JOBS.kind,
            "name": archive.job,
            "uid": archive.job_uid,
        }
        amounts = {"cpu": "100m", "memory": "64Mi"}
        container = {
            "name": "workdir",
            "image": archive.image,
            "command": ["sleep", str(LIFETIME)],
            "resources": {"requests": amounts, "limits": amounts},
            "volumeMounts": [{"name": "claim", "mountPath": _MOUNT_PATH}],
        }
        claim = {"claimName": archive.claim.name}
        return {
            "metadata": {"name": self._pod, "ownerReferences": [owner]},
            "spec": {
                "restartPolicy": "Never",
                "activeDeadlineSeconds": LIFETIME,
                "terminationGracePeriodSeconds": 1,
                "automountServiceAccountToken": False,
                "enableServiceLinks": False,
                "containers": [container],
                "volumes": [{"name": "claim", "persistentVolumeClaim": claim}],
            },
        }

    async def _wait_running(self) -> None:
        """Wait until the pod runs.

        Raises:
            ClaimError: it has ended, or does not run in time.
        """
        try:
            async with asyncio.timeout(START_TIMEOUT):
                while self._status.phase != "Running":
                    await self._watch_pod()
        except TimeoutError:
            problem = _problem(self._status)
            text = f"pod {self._pod} does not run after {START_TIMEOUT} s: {problem}"
            raise ClaimError(text) from None

    async def _watch_pod(self) -> None:
        """Follow the status of the pod until it runs, or the server ends the watch.

        Raises:
            ClaimError: the pod has ended, or does not start.
        """
        selector = f"metadata.name={self._pod}"
        watch = self._client.watch(
            PODS, view=_Pod, namespace=self._archive.namespace, field_selector=selector
        )
        async with aclosing(watch) as events:
            async for event in events:
                self._status = status = event.object.status
                if event.type == "DELETED":
                    raise ClaimError(f"pod {self._pod} was deleted")
                if status.phase in ("Failed", "Succeeded"):
                    raise ClaimError(f"pod {self._pod} has ended: {_problem(status)}")
                if any(each.reason in _NOT_STARTING for each in status.waiting):
                    raise ClaimError(f"pod {self._pod} does not start: {_problem(status)}")
                if status.phase == "Running":
                    return

    async def _remove_stale(self) -> None:
        """Remove directories of jobs that were deleted.

        A job is created before its directory: so if a directory that was listed before the jobs
        has none, its job was deleted.
        """
        listed = (await self._execute(_LIST, self._directory)).split()
        names = [each for each in listed if _JOB_NAME.fullmatch(each)]
        if not names:
            return
        existing = {
            each.metadata.name
            for each in (
                await self._client.list(JOBS, namespace=self._archive.namespace, view=_Named)
            ).items
        }
        stale = [each for each in names if each not in existing][:_MAX_REMOVED]
        if stale:
            await self._execute(_REMOVE, self._directory, *stale, check=False)

    async def _execute(
        self, script: str, *arguments: str, content: bytes = b"", check: bool = True
    ) -> str:
        """Run a script in the pod, with *content* as its input; return its output.

        Raises:
            ClaimError: it has failed, and *check* is set.
        """
        output: list[bytes] = []
        async with open_pod_stream(
            self._credentials,
            subresource="exec",
            namespace=self._archive.namespace,
            pod=self._pod,
            command=["/bin/sh", "-c", script, "batholith", *arguments],
            stdin=bool(content),
            tty=False,
            user_agent=_USER_AGENT,
        ) as stream:

            async def send() -> None:
                for start in range(0, len(content), _BLOCK):
                    await stream.send_input(content[start : start + _BLOCK])

            sending = asyncio.create_task(send())
            try:
                async for _, data in stream.output():
                    output.append(data)
            finally:
                await cancel_and_wait(sending)
            code = stream.exit_code()
        text = b"".join(output).decode(errors="replace")
        if code and check:
            raise ClaimError(
                f"claim {self._archive.claim.name}: {text.strip() or f'exit code {code}'}"
            )
        return text


def _problem(status: _PodStatus) -> str:
    """Return why a pod does not run."""
    found = [
        status.message or status.reason,
        *(f"{each.reason}: {each.message}" for each in status.waiting),
        *(each.message for each in status.conditions if each.status == "False"),
    ]
    return next(filter(None, found), f"its phase is {status.phase or 'unknown'}")
