"""The Volcano job of a script or a command. Pure."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...model import times
from ...model.arrays import PARAMETER_PREFIX, ArrayMembers
from ...model.arrays import PLUGIN as ARRAY_PLUGIN
from ...model.dependencies import Dependency, DependencyType
from ...model.job import Action, JobEvent
from ...model.names import (
    ACCOUNT,
    BEGIN,
    DEPENDS_ON,
    JOB_ID,
    JOB_NAME,
    MAX_PARALLEL,
    NOTIFY,
    NOTIFY_EVENTS,
    SUBMITTED_NAME,
    TIME_LIMIT,
    TIME_LIMIT_WARNING,
)
from ...model.workdirs import CHUNK_KEY, configmap_names
from ...wire.renewal import PACKED_VOLUME
from .environment import literal, node_list, slurm_variables
from .errors import SubmitError
from .files import OPEN_FILES, file_arguments
from .options import SubmitOptions
from .shape import Shape, shape_of

if TYPE_CHECKING:
    from ...client import Job
    from ...client.task_builder import TaskOptions

TASK = "main"
MAX_SCRIPT = 100_000
"""Bytes of a script: it is a variable of the container, of which Linux accepts 128 KiB."""
SCRIPT_DIR = "/var/spool/batholith"
_MAX_NAME = 40
_HOSTNAME = "kubernetes.io/hostname"

_RUN_SCRIPT = """\
file="${BATHOLITH_ROOT-}/var/spool/batholith/slurm_script"
printf %s "$BATHOLITH_SCRIPT" > "$file" && chmod +x "$file" || exit 1
unset BATHOLITH_SCRIPT
exec "$file" "$@"
"""
"""Runs the script as a file, so that its first line names the interpreter. Where pods have no file
system of their own, volumes are below $BATHOLITH_ROOT."""
_RUN_COMMAND = 'exec "$@"\n'
_UNPACK = 'cat "$1"/* | tar -xzf - -C "$2"'
_PACKED_DIR = "/var/run/batholith-workdir"


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What runs: a script with its arguments, or a command."""

    arguments: Sequence[str] = ()
    """Of the script, or the command with its arguments."""
    script: str | None = None
    parameters: Sequence[str] = ()
    """Of a sweep: ``NAME=VALUES``, see :class:`~batholith.model.arrays.Parameter`."""
    name: str
    """Name of the job unless ``--job-name`` gives another."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A PersistentVolumeClaim in which archives of working directories are stored."""

    name: str
    uid: str

    @property
    def directory(self) -> str:
        """Directory of the volume with those of all jobs.

        The uid is part of it, because volumes of several claims may be the same directory of a
        file server.
        """
        return f".batholith/{self.uid}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """Where the job is submitted from, and what its pods have of that."""

    submit_dir: str
    """Working directory of the caller."""
    workdir: str = ""
    """Directory of this machine that pods mount; empty for none."""
    writable: bool = False
    image: str = ""
    """Image if ``--image`` gives none; empty if it must."""
    archive: bytes = b""
    """What pods unpack into :attr:`workdir` instead of mounting it; empty for nothing."""
    claim: Claim | None = None
    """Where :attr:`archive` is stored; ``None`` for ConfigMaps."""


@dataclass(frozen=True, slots=True)
class ArrayJob:
    """The members of an array job."""

    arguments: Sequence[str]
    """Of the plugin."""
    count: int
    limit: int | None
    """How many members may run at a time."""


def array_of(options: SubmitOptions, program: Program) -> ArrayJob | None:
    """Return the members of an array job or a sweep; ``None`` for another job.

    Raises:
        SubmitError: a parameter is malformed, or there are too many members.
    """
    if options.array is None and not program.parameters:
        return None
    if options.array is not None and program.parameters:
        raise SubmitError([f"{options.where('array')}: a sweep is an array by its parameters"])
    arguments = [f"--param={each}" for each in program.parameters]
    limit = options.max_parallel
    if options.array is not None:
        indices, limit = options.array
        arguments.append(f"--indices={indices}")
    try:
        return ArrayJob(arguments, len(ArrayMembers.parse(arguments).indices), limit)
    except ValueError as error:
        raise SubmitError([f"{options.where('param', 'array')}: {error}"]) from None


def build_manifest(
    options: SubmitOptions, program: Program, workspace: Workspace, *, number: int
) -> dict[str, Any]:
    """Return the manifest of a job; *number* is unique, as in its name.

    Raises:
        SubmitError: options do not fit the program or the workspace.
        ManifestError: a name is invalid.
    """
    shape = shape_of(options, is_script=program.script is not None)
    array = array_of(options, program)
    if problems := list(_problems(options, program, workspace)):
        raise SubmitError(problems)
    if array is not None and shape.pods > 1:
        where = options.where("array", "ntasks", "nodes")
        raise SubmitError([f"{where}: a member of an array has one pod, not {shape.pods}"])
    if array is not None and options.requeue is False:
        where = options.where("no-requeue")
        raise SubmitError([f"{where} is not supported for arrays: it would end all members"])
    name = options.job_name or program.name
    job_name = f"{object_name(name)}-{number}"
    env = _environment(options, program, workspace, shape, number=number, job_name=job_name)
    built = _job(options, name, array, number=number, job_name=job_name)
    built = _with_task(built, options, program, workspace, shape=shape, env=env, array=array,
                       job_name=job_name)  # fmt: skip
    manifest = built.manifest()
    if array is not None:
        # Completed only if all members have succeeded, although they do not start together.
        manifest["spec"]["minSuccess"] = array.count
    return manifest


def _job(
    options: SubmitOptions, name: str, array: ArrayJob | None, *, number: int, job_name: str
) -> "Job":
    from ...client import Job

    annotations = _time_limits(options) | _notifications(options)
    if options.dependencies:
        found = [Dependency(DependencyType(kind), job) for kind, job in options.dependencies]
        annotations[DEPENDS_ON] = ",".join(map(str, found))
    if options.begin is not None:
        annotations[BEGIN] = times.format(options.begin)
    if array is not None and array.limit is not None:
        annotations[MAX_PARALLEL] = str(array.limit)
    labels = {JOB_ID: str(number), SUBMITTED_NAME: label_value(name)}
    if options.account:
        labels[ACCOUNT] = options.account
    return Job(
        job_name,
        queue=options.queue or None,
        labels=labels,
        annotations=annotations or None,
        min_available=None if array is None else 1,
        priority_class=options.priority_class or None,
        suspend=options.hold or None,
    )


def _environment(
    options: SubmitOptions, program: Program, workspace: Workspace, shape: Shape, *,
    number: int, job_name: str,
) -> list[dict[str, Any]]:  # fmt: skip
    name = options.job_name or program.name
    own = {key: literal(value) for key, value in options.variables.items()}
    if program.script is not None:
        own["BATHOLITH_SCRIPT"] = literal(program.script)
    slurm = slurm_variables(
        options, shape, number=number, name=name, submit_dir=workspace.submit_dir
    )
    hosts = dict.fromkeys(
        ("SLURM_JOB_NODELIST", "SLURM_NODELIST"), node_list(job_name, TASK, shape.pods)
    )
    return [*_variables(own), *slurm, *_variables(hosts)]


def _variables(values: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    return ({"name": key, "value": value} for key, value in values.items())


def _with_task(
    job: "Job", options: SubmitOptions, program: Program, workspace: Workspace, *,
    shape: Shape, env: list[dict[str, Any]], array: ArrayJob | None, job_name: str,
) -> "Job":  # fmt: skip
    image = options.image or workspace.image
    volumes, mounts = _volumes(options, program, workspace, job_name)
    name = options.job_name or program.name
    files = file_arguments(options, name=name, is_array=array is not None)
    container: dict[str, Any] = {"env": env}
    if mounts:
        container["volumeMounts"] = mounts
    if directory := workspace.workdir or options.chdir:
        container["workingDir"] = directory
    task: TaskOptions = {
        "command": _command(program, files),
        "cpu": shape.cpus,
        "gpus": shape.gpus,
        "node_selector": options.node_labels,
        "container": container,
        "pod": {
            **({"volumes": volumes} if volumes else {}),
            **({"affinity": _exclusive()} if options.exclusive else {}),
            **(
                {"initContainers": [_unpacking(job_name, workspace, image)]}
                if workspace.archive
                else {}
            ),
        },
    }
    if shape.memory is not None:
        task["memory"] = f"{shape.memory}Mi"
    if array is not None:
        task["min_available"] = 1
    replicas = shape.pods if array is None else array.count
    job = job.task(TASK, image=image, replicas=replicas, **task)
    job = job.plugin("env")
    if array is not None:
        job = job.plugin(ARRAY_PLUGIN, *array.arguments)
    elif shape.pods > 1:
        job = job.plugin("svc")
    if options.requeue and shape.pods > 1:
        job = job.policy(JobEvent.POD_EVICTED, Action.RESTART_JOB)
    if options.requeue is False:
        job = job.policy(JobEvent.POD_EVICTED, Action.TERMINATE_JOB)
    return job


def _command(program: Program, files: Sequence[str]) -> list[str]:
    """Return the container's command. What the caller has written are arguments only."""
    arguments = [_with_parameters(literal(each), program) for each in program.arguments]
    if program.script is None and not files:
        return arguments
    run = _RUN_COMMAND if program.script is None else _RUN_SCRIPT
    text = (OPEN_FILES if files else "") + run
    return ["/bin/sh", "-c", literal(text), "batholith", *files, *arguments]


def _with_parameters(argument: str, program: Program) -> str:
    """Return an argument in which Kubernetes replaces ``{NAME}`` by the parameter of the pod."""
    for parameter in program.parameters:
        name = parameter.partition("=")[0]
        argument = argument.replace(f"{{{name}}}", f"$({PARAMETER_PREFIX}{name})")
    return argument


def _mount(workspace: Workspace) -> dict[str, Any]:
    return {"name": "workdir", "mountPath": workspace.workdir}


def _unpacked(job_name: str, workspace: Workspace) -> list[dict[str, Any]]:
    """Return the volumes of a working directory that is packed."""
    if workspace.claim is not None:
        source = {"persistentVolumeClaim": {"claimName": workspace.claim.name}}
        return [{"name": "workdir", "emptyDir": {}}, {"name": PACKED_VOLUME, **source}]
    sources = [
        {"configMap": {"name": name, "items": [{"key": CHUNK_KEY, "path": f"{number:02}"}]}}
        for number, name in enumerate(configmap_names(job_name, workspace.archive))
    ]
    return [
        {"name": "workdir", "emptyDir": {}},
        {"name": PACKED_VOLUME, "projected": {"sources": sources}},
    ]


def _unpacking(job_name: str, workspace: Workspace, image: str) -> dict[str, Any]:
    """Return the init container that unpacks the working directory."""
    packed = {"name": PACKED_VOLUME, "mountPath": _PACKED_DIR, "readOnly": True}
    if workspace.claim is not None:
        packed["subPath"] = f"{workspace.claim.directory}/{job_name}"
    return {
        "name": "workdir",
        "image": image,
        "command": ["/bin/sh", "-c", _UNPACK, "batholith", _PACKED_DIR, workspace.workdir],
        "volumeMounts": [
            _mount(workspace),
            packed,
        ],
    }


def _volumes(
    options: SubmitOptions, program: Program, workspace: Workspace, job_name: str
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    volumes: list[dict[str, Any]] = []
    mounts: list[dict[str, Any]] = []
    if program.script is not None:
        volumes.append({"name": "script", "emptyDir": {}})
        mounts.append({"name": "script", "mountPath": SCRIPT_DIR})
    if workspace.workdir:
        if workspace.archive:
            return [*volumes, *_unpacked(job_name, workspace)], [*mounts, _mount(workspace)]
        volumes.append({"name": "workdir", "hostPath": {"path": workspace.workdir}})
        mount: dict[str, Any] = {"name": "workdir", "mountPath": workspace.workdir}
        mounts.append(mount if workspace.writable else {**mount, "readOnly": True})
    return volumes, mounts


def _exclusive() -> dict[str, Any]:
    """Return the affinity of a pod that keeps all pods of Volcano jobs off its node."""
    others = {"matchExpressions": [{"key": JOB_NAME, "operator": "Exists"}]}
    term = {"labelSelector": others, "namespaceSelector": {}, "topologyKey": _HOSTNAME}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def _time_limits(options: SubmitOptions) -> dict[str, str]:
    found = {}
    if options.time_limit is not None:
        found[TIME_LIMIT] = f"{options.time_limit}s"
    if options.warning is not None:
        found[TIME_LIMIT_WARNING] = f"{options.warning}s"
    return found


def _notifications(options: SubmitOptions) -> dict[str, str]:
    if not options.notify_url or options.notify_events == frozenset():
        return {}
    events = options.notify_events
    chosen = {} if events is None else {NOTIFY_EVENTS: ",".join(sorted(events))}
    return {NOTIFY: options.notify_url, **chosen}


def _problems(options: SubmitOptions, program: Program, workspace: Workspace) -> Iterator[str]:
    """Yield why options have no effect with this program or in this workspace."""
    if not (options.image or workspace.image):
        yield "--image is missing: which image has the program?"
    if program.script is not None and len(program.script.encode()) > MAX_SCRIPT:
        yield f"the script has more than {MAX_SCRIPT} bytes; put data into files"
    if program.script is None and not program.arguments:
        yield "the command is missing"
    if options.warning is not None:
        yield from _problems_of_warning(options, options.warning, program)
    if options.append and not (options.output or options.error):
        yield f"{options.where('open-mode')}: there is neither --output nor --error"
    for name, path in (("output", options.output), ("error", options.error)):
        if path and workspace.archive and not path.startswith("/dev/"):
            yield (
                f"{options.where(name)} is not supported, as the copy of the working directory is"
                f" not kept: use --ignore={name} to have it in the logs"
            )
        elif path and not workspace.writable and not path.startswith("/dev/"):
            yield (
                f"{options.where(name)} is not supported, as the job cannot write to the working"
                f" directory: use --workdir-rw, or --ignore={name} to have it in the logs"
            )


def _problems_of_warning(options: SubmitOptions, warning: int, program: Program) -> Iterator[str]:
    where = options.where("signal")
    if options.time_limit is None:
        yield f"{where}: it is a time before the time limit: --time is missing"
    elif warning >= options.time_limit:
        yield f"{where}: it is not less than the time limit"
    if program.script is not None and not options.warns_script:
        yield (
            f"{where} is not supported without B:, since the signal is for the script, which may"
            " forward it"
        )


def object_name(text: str) -> str:
    """Return *text* as the begin of a name of Kubernetes."""
    found = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    if not found[:1].isalpha():  # the name of a Service begins with a letter
        found = f"job-{found}"
    return found[:_MAX_NAME].strip("-")


def label_value(text: str) -> str:
    """Return *text* as the value of a label."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text)[:63].strip("_.-")
