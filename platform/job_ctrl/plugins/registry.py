"""All plugins that there are, and those of one job.

Plugins act in a fixed order, the one of :data:`ORDER`: frameworks before ``svc``, ``ssh`` and
``env``, so that a container that they add is served too; ``hcclrank``, which reads what others
wrote, last. Those of other packages (see ``installed``) come before all of them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ...model.job import Job
from ...model.names import Resource
from ...model.validation import path_segment_error
from ..pods import Pod
from . import entry_points
from .base import (
    DesiredObject,
    Factory,
    HasWarnings,
    JobValidator,
    JsonObject,
    ObjectProvider,
    ObjectRemover,
    PodMutator,
)
from .env import Env
from .errors import PluginError, UnknownPluginError, plugin_errors
from .hcclrank import HcclRank
from .mpi import Mpi
from .pytorch import PyTorch
from .ray import Ray
from .ssh import Ssh
from .svc import Svc
from .tensorflow import TensorFlow

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
_HOOKS = (PodMutator, ObjectProvider, ObjectRemover, JobValidator)


class JobPlugins:
    """The plugins of one job, in the order in which they act.

    One that fails holds up what it has a part in, and nothing else: while a plugin is missing the
    job gets no pods and no objects, but a job that has its pods comes to its end.
    """

    def __init__(
        self, plugins: Sequence[tuple[str, object]], missing: PluginError | None = None
    ) -> None:
        """*members* are plugins by name; *missing* is why there is one less than there should."""
        self._plugins = plugins
        self._missing = missing
        self._mutators = [
            (name, plugin) for name, plugin in plugins if isinstance(plugin, PodMutator)
        ]

    def mutate_pod(self, pod: Pod, job: Job) -> None:
        """Let each plugin change *pod* in place.

        Raises:
            PluginError: a plugin is missing, or fails.
        """
        self._require_all()
        for name, plugin in self._mutators:
            with plugin_errors(name, "on_pod_create"):
                plugin.on_pod_create(pod, job)

    def desired_objects(self, job: Job) -> Iterator[DesiredObject]:
        """The objects that the plugins need beside the pods.

        Raises:
            PluginError: a plugin is missing, or fails.
        """
        self._require_all()
        for name, plugin in self._plugins:
            if isinstance(plugin, ObjectProvider):
                with plugin_errors(name, "on_job_add"):
                    found = [_with_error_context(name, one) for one in plugin.on_job_add(job)]
                yield from found

    def objects_to_delete(self, job: Job) -> Iterator[tuple[Resource, str]]:
        """The objects to remove when the job ends.

        Raises:
            PluginError: a plugin fails; only after the objects of all others.
        """
        failed: PluginError | None = None
        for name, plugin in self._plugins:
            if isinstance(plugin, ObjectRemover):
                try:
                    with plugin_errors(name, "on_job_delete"):
                        found = [
                            (resource, named)
                            for resource, named in plugin.on_job_delete(job)
                            if not _name_problem(named)  # such a one was never made
                        ]
                except PluginError as error:
                    failed = error
                else:
                    yield from found
        if failed is not None:
            raise failed

    def warnings(self, job: Job) -> Iterator[str]:
        """What the plugins could not make sense of."""
        for name, plugin in self._plugins:
            if isinstance(plugin, HasWarnings):
                yield from plugin.warnings
            if isinstance(plugin, JobValidator):
                try:
                    with plugin_errors(name, "complaints_about"):
                        found = list(plugin.validate_job(job))
                except PluginError as error:
                    found = [str(error)]
                yield from found

    def _require_all(self) -> None:
        if self._missing is not None:
            raise self._missing.with_traceback(None)  # it is raised at every look


class Registry:
    """The plugins by name; found once, when the process starts."""

    def __init__(self, factories: Mapping[str, Factory] = BUILT_IN) -> None:
        self._factories = dict(factories)

    @classmethod
    def load(cls) -> "Registry":
        """The built-in plugins and those of installed packages, which may replace them."""
        return cls({**BUILT_IN, **entry_points.load()})

    def for_job(self, job: Job) -> JobPlugins:
        """The plugins that *job* names; the team tells of those that there are not."""
        members: list[tuple[str, object]] = []
        missing: PluginError | None = None
        for name, arguments in sorted(job.spec.plugins.items(), key=lambda one: _sort_key(one[0])):
            try:
                members.append((name, self._create(name, arguments)))
            except PluginError as error:
                missing = missing or error
        return JobPlugins(members, missing)

    def _create(self, name: str, arguments: Sequence[str]) -> object:
        factory = self._factories.get(name)
        if factory is None:
            raise UnknownPluginError(name, self._factories)
        with plugin_errors(name, "its making"):
            made = factory(arguments)
            if not isinstance(made, _HOOKS):
                hooks = "on_pod_create, on_job_add, on_job_delete and complaints_about"
                raise TypeError(f"it has none of {hooks}")
            return made


def _with_error_context(plugin: str, desired: DesiredObject) -> DesiredObject:
    """*wanted*, with the plugin's name in what its making raises.

    Raises:
        PluginError: no object can have its name.
    """
    if problem := _name_problem(desired.name):
        named = f"{desired.resource.kind} {desired.name!r}"
        raise PluginError(plugin, f"wants an object of an invalid name, {named}: {problem}")

    def build() -> JsonObject:
        with plugin_errors(plugin, f"the making of {desired.resource.kind} {desired.name}"):
            made = desired.build()
            if not isinstance(made, dict):
                raise TypeError(f"it is no object but {made!r}")
            return made

    return replace(desired, build=build)


def _name_problem(name: str) -> str:
    return path_segment_error(name) if name else "it is empty"


def _sort_key(plugin: str) -> tuple[int, str]:
    return (ORDER.index(plugin), plugin) if plugin in ORDER else (-1, plugin)
