"""Check that nodes can run the image, with a short-lived pod.

Neither a dry run nor the API of a registry shows that: credentials, mirrors, platforms and
policies of the nodes decide. So a pod prints the version of the image and is deleted.
"""

import asyncio
import re
import secrets
import time
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from ..kube.client.client import Client
from ..kube.errors import ApiError, ConnectionLostError, NotFoundError
from ..model.base import ApiStruct
from ..model.names import NAMESPACES, PODS
from .preflight_checks import CheckResult

NAME = "image"
POLL_INTERVAL = 0.5
LOG_TIMEOUT = 30.0
"""Seconds without data after which reading the log of the pod fails."""
LABELS = {"app.kubernetes.io/name": "batholith-preflight"}
PULL_FAILURES = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"}
)
"""Reasons with which a kubelet reports that it cannot pull an image."""
START_FAILURES = frozenset(
    {"CreateContainerConfigError", "CreateContainerError", "RunContainerError"}
)
_FALLBACK_NAMESPACE = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageOptions:
    """The image, and how to run it."""

    image: str
    namespace: str
    """Namespace of the installation; ``default`` is used if it does not exist yet."""
    pull_secret: str
    timeout: float
    """Seconds that the pod may take until it has ended."""


class _State(ApiStruct, frozen=True):
    class Waiting(ApiStruct, frozen=True):
        reason: str = ""
        message: str = ""

    class Terminated(ApiStruct, frozen=True):
        exit_code: int = 0
        reason: str = ""
        message: str = ""

    waiting: Waiting | None = None
    terminated: Terminated | None = None


class _ContainerStatus(ApiStruct, frozen=True):
    state: _State = _State()


class _Condition(ApiStruct, frozen=True):
    type: str = ""
    status: str = ""
    message: str = ""


class _Pod(ApiStruct, frozen=True):
    class Status(ApiStruct, frozen=True):
        phase: str = ""
        reason: str = ""
        message: str = ""
        conditions: tuple[_Condition, ...] = ()
        container_statuses: tuple[_ContainerStatus, ...] = ()

    status: Status = Status()

    @property
    def state(self) -> _State:
        """State of the only container."""
        return next((each.state for each in self.status.container_statuses), _State())


async def check_image(client: Client, options: ImageOptions) -> CheckResult:
    """Run the image in a pod, which is always deleted."""
    namespace = await _existing_namespace(client, options.namespace)
    name = f"batholith-preflight-{secrets.token_hex(4)}"
    try:
        await client.create(PODS, _pod(name, options), namespace=namespace)
    except ApiError as error:
        return _failed(
            f"cannot create a pod in {namespace}: {error}",
            "correct the cause, or skip this check with --skip-image",
        )
    except ConnectionLostError:  # it may have been created
        await _delete(client, name, namespace)
        raise
    try:
        result = await _outcome(client, name, namespace, options)
    finally:
        error_text = await asyncio.shield(_delete(client, name, namespace))
    if not error_text:
        return result
    return CheckResult(
        name=NAME,
        outcome="failed",
        message=f"{result.message}; the pod could not be deleted: {error_text}",
        action="; ".join(
            filter(None, (result.action, f"kubectl -n {namespace} delete pod {name}"))
        ),
    )


async def _existing_namespace(client: Client, wanted: str) -> str:
    try:
        await client.get(NAMESPACES, wanted, view=_Pod)
    except ApiError:
        return _FALLBACK_NAMESPACE
    return wanted


async def _delete(client: Client, name: str, namespace: str) -> str:
    """Delete the pod; return why it was not possible, or ``""``."""
    try:
        await client.delete(PODS, name, namespace=namespace, grace_period=0)
    except NotFoundError:
        return ""
    except (ApiError, ConnectionLostError) as error:
        return str(error)
    return ""


def _pod(name: str, options: ImageOptions) -> dict[str, Any]:
    """Return a pod as restricted as those of the Deployments."""
    container = {
        "name": "main",
        "image": options.image,
        "args": ["--version"],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "activeDeadlineSeconds": int(options.timeout) + 60,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
    }
    if options.pull_secret:
        spec["imagePullSecrets"] = [{"name": options.pull_secret}]
    return {"metadata": {"name": name, "labels": LABELS}, "spec": spec}


async def _outcome(client: Client, name: str, namespace: str, options: ImageOptions) -> CheckResult:
    """Poll until the pod has ended, cannot start, or the time is over."""
    deadline = time.monotonic() + options.timeout
    while True:
        pod = await client.get(PODS, name, namespace=namespace, view=_Pod)
        waiting, terminated = pod.state.waiting, pod.state.terminated
        if terminated is not None:
            if terminated.exit_code:
                text = f"{options.image} ended with {terminated.exit_code}: {terminated.message}"
                return _failed(text.strip(), "use an image that was built from this repository")
            return await compare_version(client, name, namespace, options.image)
        if waiting is not None and waiting.reason in PULL_FAILURES:
            return _failed(
                f"{options.image}: {waiting.reason}: {waiting.message}",
                "build and push the image, or correct --image or --pull-secret (docs/install.md)",
            )
        if waiting is not None and waiting.reason in START_FAILURES:
            return _failed(f"{options.image}: {waiting.reason}: {waiting.message}", "correct it")
        if pod.status.phase == "Failed":
            return _failed(
                f"the pod failed: {pod.status.reason} {pod.status.message}", "correct it"
            )
        if time.monotonic() > deadline:
            return _failed(
                f"the pod did not end within {options.timeout:.0f} s: {_progress(pod)}",
                "correct the cause, or raise --timeout",
            )
        await asyncio.sleep(POLL_INTERVAL)


def _progress(pod: _Pod) -> str:
    """Return what the pod waits for."""
    if pod.state.waiting is not None:
        return f"{pod.state.waiting.reason} {pod.state.waiting.message}".strip()
    unscheduled = (
        each.message
        for each in pod.status.conditions
        if each.type == "PodScheduled" and each.status == "False"
    )
    return next(unscheduled, f"phase {pod.status.phase or 'unknown'}")


async def compare_version(client: Client, name: str, namespace: str, image: str) -> CheckResult:
    """Return whether the pod *name* has printed the version of this program."""
    own = metadata.version("batholith")
    try:
        path = PODS.path(namespace, name, "log")
        async with client.stream_path(path, idle_timeout=LOG_TIMEOUT) as chunks:
            lines = [chunk async for chunk in chunks]
    except (ApiError, ConnectionLostError) as error:
        text = f"{image} can be run; its version is unknown: {error}"
        return CheckResult(name=NAME, outcome="warning", message=text)
    output = b"".join(lines).decode(errors="replace").strip()
    found = re.fullmatch(r"batholith (\S+)", output)
    if found is None:
        return _failed(
            f"{image} does not contain Batholith: it printed {output[:100]!r}",
            "use an image that was built from this repository",
        )
    if found[1] != own:
        return CheckResult(
            name=NAME,
            outcome="warning",
            message=f"{image} contains version {found[1]}, this is version {own}",
            action="apply the manifests of the version in the image",
        )
    return CheckResult(name=NAME, outcome="ok", message=f"{image} runs, version {own}")


def _failed(message: str, action: str) -> CheckResult:
    return CheckResult(name=NAME, outcome="failed", message=message, action=action)
