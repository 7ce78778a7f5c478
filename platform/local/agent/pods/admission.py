"""Which pods the node accepts, as a kubelet decides before it starts any container."""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol

from ..settings import AgentSettings
from ..state.core_types import Container, Pod
from ..state.sysctls import forbidden_sysctl
from .records import PodDir

_ANY_ADDRESS = "0.0.0.0"


class Rejection(NamedTuple):
    """Why the node does not run a pod."""

    reason: str
    message: str


class Admitted(Protocol):
    """What the node does with a pod."""

    rejection: Rejection | None

    @property
    def is_terminated(self) -> bool:
        """Whether no container runs any more, and none will start."""
        ...


class PodAdmission:
    """Reviews new pods."""

    def __init__(
        self,
        settings: AgentSettings,
        pods: Iterable[Pod],
        worker: Callable[[str], Admitted | None],
    ) -> None:
        """*pods* are those of the node; *worker* returns that of a pod by its uid."""
        self._settings = settings
        self._pods = pods
        self._worker = worker

    def review(self, pod: Pod) -> Rejection | None:
        """Return why the node rejects a pod; None if it accepts it, or an earlier agent has."""
        rejection = self._rejection(pod)
        return None if rejection is not None and self._is_accepted(pod) else rejection

    def _rejection(self, pod: Pod) -> Rejection | None:
        if name := forbidden_sysctl(pod, self._settings.allowed_unsafe_sysctls):
            return Rejection("SysctlForbidden", f'forbidden sysctl: "{name}" not allowlisted')
        wanted = set(_host_ports(pod))
        if not wanted:
            return None
        for other in self._pods:
            if other.metadata.uid == pod.metadata.uid or not _conflict(wanted, other):
                continue
            if self._holds_ports(other):
                return Rejection(
                    "NodePorts",
                    "Predicate NodePorts failed: node(s) didn't have free ports for the requested "
                    "pod ports",
                )
        return None

    def _holds_ports(self, pod: Pod) -> bool:
        worker = self._worker(pod.metadata.uid)
        if worker is not None:
            return worker.rejection is None and not worker.is_terminated
        return pod.needs_work and self._is_accepted(pod)  # by an earlier agent

    def _is_accepted(self, pod: Pod) -> bool:
        return PodDir.of(self._settings.data_dir, pod).read_record() is not None


_Port = tuple[str, int, str]


def _host_ports(pod: Pod) -> Iterator[_Port]:
    """Yield protocol, number and address of the host ports that a pod has all the time."""
    for container in _concurrent_containers(pod):
        for port in container.ports:
            if port.host_port:
                yield port.protocol, port.host_port, port.host_ip or _ANY_ADDRESS


def _concurrent_containers(pod: Pod) -> Iterator[Container]:
    yield from pod.spec.containers
    for container in pod.spec.init_containers:
        if container.restart_policy == "Always":
            yield container


def _conflict(wanted: Iterable[_Port], other: Pod) -> bool:
    """Return whether protocol and number of two ports are equal, and their addresses overlap."""
    used = list(_host_ports(other))
    return any(
        mine[:2] == theirs[:2] and (mine[2] == theirs[2] or _ANY_ADDRESS in (mine[2], theirs[2]))
        for mine in wanted
        for theirs in used
    )
