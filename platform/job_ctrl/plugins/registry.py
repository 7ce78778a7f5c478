"""All plugins that there are, and those of one job.

Plugins act in a fixed order, the one of :data:`ORDER`: frameworks before ``svc``, ``ssh`` and
``env``, so that a container that they add is served too; ``hcclrank``, which reads what others
wrote, last. Those of other packages (entry points of the group ``batholith.job_plugins``) come
before all of them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import entry_points
from typing import cast

from ...model.job import Job
from ...model.names import Resource
from ..pods import Pod
from .base import (
    BringsObjects,
    ChecksJobs,
    Factory,
    HasComplaints,
    ShapesPods,
    TakesObjectsAway,
    Wanted,
)
from .env import Env
from .hcclrank import HcclRank
from .mpi import Mpi
from .pytorch import PyTorch
from .ray import Ray
from .ssh import Ssh
from .svc import Svc
from .tensorflow import TensorFlow

GROUP = "batholith.job_plugins"
BUILT_IN: Mapping[str, Factory] = {
    "tensorflow": TensorFlow,
    "pytorch": PyTorch,
    "mpi": Mpi,
    "ray": Ray,
    "svc": Svc,
    "ssh": Ssh,
    "env": Env,
    "hcclrank": HcclRank,
}
ORDER = tuple(BUILT_IN)


class UnknownPluginError(Exception):
    """The job names a plugin that there is not."""

    def __init__(self, plugin: str, known: Iterable[str]) -> None:
        super().__init__(f"there is no job plugin {plugin!r}; known are {', '.join(sorted(known))}")
        self.plugin = plugin


class Team:
    """The plugins of one job, in the order in which they act."""

    def __init__(self, members: Sequence[object]) -> None:
        self._members = members

    def shape(self, pod: Pod, job: Job) -> None:
        """Let each plugin change *pod* in place."""
        for member in self._members:
            if isinstance(member, ShapesPods):
                member.on_pod_create(pod, job)

    def wanted(self, job: Job) -> Iterator[Wanted]:
        """The objects that the plugins need beside the pods."""
        for member in self._members:
            if isinstance(member, BringsObjects):
                yield from member.on_job_add(job)

    def unwanted(self, job: Job) -> Iterator[tuple[Resource, str]]:
        """The objects to remove when the job ends."""
        for member in self._members:
            if isinstance(member, TakesObjectsAway):
                yield from member.on_job_delete(job)

    def complaints(self, job: Job) -> Iterator[str]:
        """What the plugins could not make sense of."""
        for member in self._members:
            if isinstance(member, HasComplaints):
                yield from member.complaints
            if isinstance(member, ChecksJobs):
                yield from member.complaints_about(job)


class Registry:
    """The plugins by name; found once, when the process starts."""

    def __init__(self, factories: Mapping[str, Factory] = BUILT_IN) -> None:
        self._factories = dict(factories)

    @classmethod
    def load(cls) -> "Registry":
        """The built-in plugins and those of installed packages, which may replace them."""
        found = {entry.name: cast(Factory, entry.load()) for entry in entry_points(group=GROUP)}
        return cls({**BUILT_IN, **found})

    def team(self, job: Job) -> Team:
        """The plugins that *job* names.

        Raises:
            UnknownPluginError: there is no plugin of a name that it names.
        """
        for name in job.spec.plugins:
            if name not in self._factories:
                raise UnknownPluginError(name, self._factories)
        ordered = sorted(job.spec.plugins.items(), key=lambda plugin: _rank(plugin[0]))
        return Team([self._factories[name](arguments) for name, arguments in ordered])


def _rank(plugin: str) -> tuple[int, str]:
    return (ORDER.index(plugin), plugin) if plugin in ORDER else (-1, plugin)
