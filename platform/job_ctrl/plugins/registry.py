"""The plugins by name, and the plugins of one job.

Plugins run in the order of :data:`ORDER`: frameworks before ``svc``, ``ssh`` and ``env``, which
then also mutate the containers that frameworks add; ``hcclrank``, which reads the variables of
others, last. Plugins of other packages (:mod:`.entry_points`) run first.
"""

from collections.abc import Iterator, Mapping, Sequence

from ...model.job import Job
from ...model.names import Resource
from ...model.validation import path_segment_error
from ..pods import Pod
from . import entry_points
from .array import Array
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
    "array": Array,
    "hcclrank": HcclRank,
}
ORDER = tuple(BUILT_IN)
_HOOKS = (PodMutator, ObjectProvider, ObjectRemover, JobValidator)


class JobPlugins:
    """The plugins of one job, in their order.

    While a plugin is missing or fails, the controller creates no pods and no objects for the job;
    existing pods continue, and the job can end.
    """

    def __init__(
        self, plugins: Sequence[tuple[str, object]], missing: PluginError | None = None
    ) -> None:
        """*plugins* are pairs of name and plugin; *missing* is the error of one that is missing."""
        self._plugins = plugins
        self._missing = missing
        self._mutators = [
            (name, plugin) for name, plugin in plugins if isinstance(plugin, PodMutator)
        ]

    @property
    def mutate_pods(self) -> bool:
        """Whether a plugin may change pods."""
        return bool(self._mutators)

    def mutate_pod(self, pod: Pod, job: Job) -> None:
        """Call ``on_pod_create`` of each plugin, which changes *pod*.

        Raises:
            PluginError: a plugin is missing or fails.
        """
        self._require_all()
        for name, plugin in self._mutators:
            with plugin_errors(name, "on_pod_create"):
                plugin.on_pod_create(pod, job)

    def desired_objects(self, job: Job) -> Iterator[DesiredObject]:
        """Yield the objects that the plugins need in addition to the pods.

        Raises:
            PluginError: a plugin is missing or fails.
        """
        self._require_all()
        for name, plugin in self._plugins:
            if isinstance(plugin, ObjectProvider):
                with plugin_errors(name, "on_job_add"):
                    found = [_with_error_context(name, one) for one in plugin.on_job_add(job)]
                yield from found

    def objects_to_delete(self, job: Job) -> Iterator[tuple[Resource, str]]:
        """Yield the objects to delete when the job ends.

        Raises:
            PluginError: a plugin fails; raised after the objects of all others.
        """
        failed: PluginError | None = None
        for name, plugin in self._plugins:
            if isinstance(plugin, ObjectRemover):
                try:
                    with plugin_errors(name, "on_job_delete"):
                        found = [
                            (resource, named)
                            for resource, named in plugin.on_job_delete(job)
                            if not _name_problem(named)  # was never created
                        ]
                except PluginError as error:
                    failed = error
                else:
                    yield from found
        if failed is not None:
            raise failed

    def warnings(self, job: Job) -> Iterator[str]:
        """Yield the warnings of the plugins about their arguments and the job."""
        for name, plugin in self._plugins:
            if isinstance(plugin, HasWarnings):
                yield from plugin.warnings
            if isinstance(plugin, JobValidator):
                yield from _validate(name, plugin, job)

    def _require_all(self) -> None:
        if self._missing is not None:
            raise self._missing.with_traceback(None)  # the same error is raised by each sync


def _validate(name: str, plugin: JobValidator, job: Job) -> list[str]:
    """Return the warnings of one plugin about *job*; its failure is a warning, too."""
    try:
        with plugin_errors(name, "validate_job"):
            return list(plugin.validate_job(job))
    except PluginError as error:
        return [str(error)]


class Registry:
    """The plugins by name; loaded once per process."""

    def __init__(self, factories: Mapping[str, Factory] = BUILT_IN) -> None:
        self._factories = dict(factories)

    @classmethod
    def load(cls) -> "Registry":
        """Return the built-in plugins and those of other packages, which may replace them."""
        return cls({**BUILT_IN, **entry_points.load()})

    def for_job(self, job: Job) -> JobPlugins:
        """Return the plugins that *job* names, or the error of a missing one."""
        plugins: list[tuple[str, object]] = []
        missing: PluginError | None = None
        for name, arguments in sorted(job.spec.plugins.items(), key=lambda one: _sort_key(one[0])):
            try:
                plugins.append((name, self._create(name, arguments)))
            except PluginError as error:
                missing = missing or error
        return JobPlugins(plugins, missing)

    def _create(self, name: str, arguments: Sequence[str]) -> object:
        factory = self._factories.get(name)
        if factory is None:
            raise UnknownPluginError(name, self._factories)
        with plugin_errors(name, "its constructor"):
            plugin = factory(arguments)
            if not isinstance(plugin, _HOOKS):
                hooks = "on_pod_create, on_job_add, on_job_delete and validate_job"
                raise TypeError(f"it has none of {hooks}")
            return plugin


def _with_error_context(plugin: str, desired: DesiredObject) -> DesiredObject:
    """Return *desired* with the plugin's name in the errors of its ``build``.

    Raises:
        PluginError: the name of the object is invalid.
    """
    if problem := _name_problem(desired.name):
        named = f"{desired.resource.kind} {desired.name!r}"
        raise PluginError(plugin, f"returned an object with an invalid name, {named}: {problem}")

    def build() -> JsonObject:
        with plugin_errors(plugin, f"build of {desired.resource.kind} {desired.name}"):
            built = desired.build()
            if not isinstance(built, dict):
                raise TypeError(f"it is no object but {built!r}")
            return built

    return DesiredObject(
        resource=desired.resource,
        name=desired.name,
        build=build,
        synced_data=desired.synced_data,
    )


def _name_problem(name: str) -> str:
    return path_segment_error(name) if name else "it is empty"


def _sort_key(plugin: str) -> tuple[int, str]:
    return (ORDER.index(plugin), plugin) if plugin in ORDER else (-1, plugin)
