"""The Volcano job of a script or a command. Pure."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...model.job import Action, JobEvent
from ...model.names import (
    JOB_ID,
    JOB_NAME,
    SUBMITTED_NAME,
    TIME_LIMIT,
    TIME_LIMIT_WARNING,
)
from .environment import literal, node_list, slurm_variables
from .errors import SubmitError
from .files import OPEN_FILES, file_arguments
from .options import SubmitOptions
from .shape import Shape, shape_of

if TYPE_CHECKING:
    from ...client import Job

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What runs: a script with its arguments, or a command."""

    arguments: Sequence[str] = ()
    """Of the script, or the command with its arguments."""
    script: str | None = None
    name: str
    """Name of the job unless ``--job-name`` gives another."""


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


def build_manifest(
    options: SubmitOptions, program: Program, workspace: Workspace, *, number: int
) -> dict[str, Any]:
    """Return the manifest of a job; *number* is unique, as in its name.

    Raises:
        SubmitError: options do not fit the program or the workspace.
        ManifestError: a name is invalid.
    """
    from ...client import Job

    shape = shape_of(options, is_script=program.script is not None)
    if problems := list(_problems(options, program, workspace)):
        raise SubmitError(problems)
    name = options.job_name or program.name
    job_name = f"{object_name(name)}-{number}"
    built = Job(
        job_name,
        queue=options.queue or None,
        labels={JOB_ID: str(number), SUBMITTED_NAME: label_value(name)},
        annotations=_time_limits(options) or None,
        priority_class=options.priority_class or None,
    )
    variables = {
        **{key: literal(value) for key, value in options.variables.items()},
        **({"BATHOLITH_SCRIPT": literal(program.script)} if program.script is not None else {}),
    }
    slurm = slurm_variables(
        options, shape, number=number, name=name, submit_dir=workspace.submit_dir
    )
    hosts = {"SLURM_JOB_NODELIST", "SLURM_NODELIST"}
    slurm += [
        {"name": each, "value": node_list(job_name, TASK, shape.pods)} for each in sorted(hosts)
    ]
    env = [*({"name": key, "value": value} for key, value in variables.items()), *slurm]
    return _with_task(built, options, program, workspace, shape=shape, env=env).manifest()


def _with_task(
    job: "Job", options: SubmitOptions, program: Program, workspace: Workspace, *,
    shape: Shape, env: list[dict[str, Any]],
) -> "Job":  # fmt: skip
    volumes, mounts = _volumes(options, program, workspace)
    files = file_arguments(options, name=options.job_name or program.name)
    container: dict[str, Any] = {"env": env}
    if mounts:
        container["volumeMounts"] = mounts
    if directory := workspace.workdir or options.chdir:
        container["workingDir"] = directory
    memory = {} if shape.memory is None else {"memory": f"{shape.memory}Mi"}
    pod: dict[str, Any] = {}
    if volumes:
        pod["volumes"] = volumes
    if options.exclusive:
        pod["affinity"] = _exclusive()
    job = job.task(
        TASK,
        image=options.image or workspace.image,
        replicas=shape.pods,
        command=_command(program, files),
        cpu=shape.cpus,
        gpus=shape.gpus,
        node_selector=dict(options.node_labels),
        container=container,
        pod=pod,
        **memory,  # type: ignore[arg-type]
    ).plugin("env")
    if shape.pods > 1:
        job = job.plugin("svc")
    if options.requeue:
        job = job.policy(JobEvent.POD_EVICTED, Action.RESTART_JOB)
    return job


def _command(program: Program, files: Sequence[str]) -> list[str]:
    """Return the container's command. What the caller has written are arguments only."""
    arguments = [literal(each) for each in program.arguments]
    if program.script is None and not files:
        return arguments
    run = _RUN_COMMAND if program.script is None else _RUN_SCRIPT
    text = (OPEN_FILES if files else "") + run
    return ["/bin/sh", "-c", literal(text), "batholith", *files, *arguments]


def _volumes(
    options: SubmitOptions, program: Program, workspace: Workspace
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    volumes: list[dict[str, Any]] = []
    mounts: list[dict[str, Any]] = []
    if program.script is not None:
        volumes.append({"name": "script", "emptyDir": {}})
        mounts.append({"name": "script", "mountPath": SCRIPT_DIR})
    if workspace.workdir:
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
        if path and not workspace.writable and not path.startswith("/dev/"):
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
