"""Validation of security contexts against the isolation that this machine supports.

A container with an unsupported field does not start: with fewer privileges than requested it would
fail later, with more it would be less isolated than intended.
"""

from collections.abc import Iterator

from ..state.core_types import Container, Pod
from ..state.environment import SecurityContextError
from .ids import IdMode
from .mounting import ID_RANGE_SIZE, KEPT_CAPABILITIES
from .runs import IsolationLevel
from .users import User, effective_context

_CAPABILITIES = {
    "CHOWN": 0, "DAC_OVERRIDE": 1, "FOWNER": 3, "FSETID": 4, "KILL": 5, "SETGID": 6, "SETUID": 7,
    "SETPCAP": 8, "NET_BIND_SERVICE": 10, "NET_RAW": 13, "SYS_CHROOT": 18, "MKNOD": 27,
    "AUDIT_WRITE": 29, "SETFCAP": 31,
}  # fmt: skip
"""Default capabilities of container runtimes."""

_HOST_CAPABILITIES = frozenset({"NET_BIND_SERVICE", "NET_RAW", "MKNOD", "AUDIT_WRITE"})
"""Capabilities without effect in a user namespace: they concern resources of the host."""

_DEBUGGER_CAPABILITIES = frozenset({"SYS_PTRACE"})
"""Capabilities without which ephemeral containers start nevertheless: kubectl debug adds it by
default, and processes of the same user can be traced without it."""

_NETWORK_CAPABILITIES = frozenset({"NET_BIND_SERVICE"})
"""Capabilities that no program needs in the network namespace of its pod."""


def capabilities(container: Container) -> frozenset[int]:
    """Return the capabilities of a container: the defaults without the dropped ones."""
    dropped = {_normalize(name) for name in container.security_context.capabilities.drop}
    if "ALL" in dropped:
        added = map(_normalize, container.security_context.capabilities.add)
        return frozenset(_CAPABILITIES[name] for name in added if name in _CAPABILITIES)
    return KEPT_CAPABILITIES - {number for name, number in _CAPABILITIES.items() if name in dropped}


def _normalize(name: str) -> str:
    return name.upper().removeprefix("CAP_")


def check_security_context(
    pod: Pod,
    container: Container,
    user: User,
    *,
    isolation: IsolationLevel,
    id_mode: IdMode,
    agent_uid: int,
    own_network: bool = False,
) -> None:
    """Check that this machine supports the security context of *container*.

    Raises:
        SecurityContextError: a field is not supported; the text names it.
    """
    unsupported = (
        next(_unsupported_fields(pod, container), None)
        if isolation is not IsolationLevel.PLAIN
        else None
    )
    if isolation is IsolationLevel.PLAIN:
        unsupported = next(_unsupported_without_sandbox(pod, container, agent_uid), None)
    elif id_mode is not IdMode.OWN and max(user.uid, user.gid) >= ID_RANGE_SIZE:
        unsupported = f"user and group must be below {ID_RANGE_SIZE}, the number of a pod's ids"
    elif id_mode is IdMode.SWITCHED and user.is_requested and user.uid == 0:
        unsupported = "running as root needs a user namespace, which this machine does not permit"
    ephemeral = container in pod.spec.ephemeral_containers
    ignored = _DEBUGGER_CAPABILITIES if ephemeral else frozenset[str]()
    if own_network:
        ignored |= _NETWORK_CAPABILITIES
    denied = _denied_capabilities(container, id_mode, isolation, ignored)
    unsupported = unsupported or next(denied, None)
    if unsupported:
        raise SecurityContextError(
            f"container {container.name}: unsupported security context: {unsupported}"
        )


def _unsupported_fields(pod: Pod, container: Container) -> Iterator[str]:
    """Yield the fields that no sandbox supports."""
    if pod.spec.host_pid or pod.spec.share_process_namespace:
        yield "each container has its own pid namespace (hostPID, shareProcessNamespace)"
    if pod.spec.host_ipc:
        yield "each container has its own IPC namespace (hostIPC)"


def _unsupported_without_sandbox(pod: Pod, container: Container, agent_uid: int) -> Iterator[str]:
    """Yield the fields that need a sandbox."""
    context = effective_context(pod, container)
    uid = context.run_as_user
    if uid not in (None, agent_uid):
        yield f"without a sandbox it runs as user {agent_uid}, not as {uid} (runAsUser)"
    if context.run_as_non_root and agent_uid == 0:
        yield "without a sandbox it runs as root (runAsNonRoot)"
    if context.read_only_root_filesystem:
        yield "without a sandbox it has no root file system (readOnlyRootFilesystem)"


def _denied_capabilities(
    container: Container, id_mode: IdMode, isolation: IsolationLevel, ignored: frozenset[str]
) -> Iterator[str]:
    """Yield the privileges over the host, which no container gets, but for *ignored* ones."""
    context = container.security_context
    if context.privileged:
        yield "privileged"
    if context.proc_mount not in ("", "Default"):
        yield f"procMount: {context.proc_mount}"
    granted = (
        set(_CAPABILITIES) - _HOST_CAPABILITIES if _has_id_range(id_mode, isolation) else set()
    )
    for name in map(_normalize, context.capabilities.add):
        if name not in granted and name not in ignored:
            yield f"the capability {name}"


def _has_id_range(id_mode: IdMode, isolation: IsolationLevel) -> bool:
    """Return whether capabilities over its own user ids have an effect."""
    return id_mode is IdMode.RANGE and isolation is not IsolationLevel.PLAIN
