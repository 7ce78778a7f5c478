"""The options of sbatch, which of them have an effect here, and Batholith's own ones.

The table is complete, because getopt accepts abbreviations: ``--partit`` is ``--partition`` only
as long as no other option begins like this.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Argument(StrEnum):
    """Whether an option has a value."""

    NONE = "none"
    OPTIONAL = "optional"
    """Only with ``=``, or attached to the short option."""
    REQUIRED = "required"


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option."""

    name: str
    short: str = ""
    argument: Argument = Argument.REQUIRED
    help: str = ""
    """What it does; empty if it has no effect here, and is refused."""
    reason: str = ""
    """Why it is refused, or what to use instead."""
    variable: str = ""
    """The environment variable of sbatch that sets it."""
    own: bool = False
    """Whether it is Batholith's: of ``#BATHOLITH`` lines and the command line only."""

    @property
    def is_supported(self) -> bool:
        """Whether it has an effect here."""
        return bool(self.help)


def _supported(name: str, help_: str, *, short: str = "", variable: str = "") -> Option:
    return Option(name=name, short=short, help=help_, variable=variable)


def _switch(
    name: str, help_: str, *, short: str = "", variable: str = "", own: bool = False
) -> Option:
    return Option(
        name=name, short=short, help=help_, argument=Argument.NONE, variable=variable, own=own
    )


_SUPPORTED = (
    _supported("job-name", "Name; the job is called NAME-NUMBER.", short="J",
               variable="SBATCH_JOB_NAME"),
    _supported("partition", "Queue.", short="p", variable="SBATCH_PARTITION"),
    _supported("account", "Account, such as a project, by which usage is added up.", short="A",
               variable="SBATCH_ACCOUNT"),
    _supported("nodes", "Pods, each with the CPUs and the memory of its tasks.", short="N"),
    _supported("ntasks", "Tasks: of a script, processes that it may start in its pod; of a"
               " command, pods.", short="n"),
    _supported("ntasks-per-node", "Tasks of each pod."),
    _supported("cpus-per-task", "CPUs of each task.", short="c"),
    _supported("mem", "Memory of each pod, in MiB or with K, M, G or T.",
               variable="SBATCH_MEM_PER_NODE"),
    _supported("mem-per-cpu", "Memory for each CPU.", variable="SBATCH_MEM_PER_CPU"),
    _supported("mem-per-gpu", "Memory for each GPU.", variable="SBATCH_MEM_PER_GPU"),
    _supported("gres", "gpu:N, for each pod.", variable="SBATCH_GRES"),
    _supported("gpus", "GPUs of all pods.", short="G", variable="SBATCH_GPUS"),
    _supported("gpus-per-node", "GPUs of each pod.", variable="SBATCH_GPUS_PER_NODE"),
    _supported("gpus-per-task", "GPUs of each task.", variable="SBATCH_GPUS_PER_TASK"),
    _supported("dependency", "afterok:JOB, afternotok:JOB, afterany:JOB, singleton; several with a"
               " comma, jobs with a colon.", short="d", variable="SBATCH_DEPENDENCY"),
    _supported("begin", "now+1hour, 16:00, tomorrow, or as in 2026-01-31T16:00.", short="b",
               variable="SBATCH_BEGIN"),
    _supported("array", "Members by index, such as 0-99 or 1,3,5-9:2; %N at its end: N at a time.",
               short="a", variable="SBATCH_ARRAY_INX"),
    _supported("time", "Time limit: minutes, or as in 30:00, 2:00:00, 1-12 and 1-12:30:00.",
               short="t", variable="SBATCH_TIMELIMIT"),
    _supported("signal", "B:TERM@SECONDS: SIGTERM as long before the time limit.",
               variable="SBATCH_SIGNAL"),
    _supported("constraint", "Node labels KEY=VALUE, or NAME for features.batholith.io/NAME=true;"
               " several with &.", short="C", variable="SBATCH_CONSTRAINT"),
    _supported("output", "File for the output, instead of the logs.", short="o",
               variable="SBATCH_OUTPUT"),
    _supported("error", "File for the errors; default: that of --output.", short="e",
               variable="SBATCH_ERROR"),
    _supported("open-mode", "append or truncate the files of --output and --error.",
               variable="SBATCH_OPEN_MODE"),
    _supported("chdir", "Working directory, instead of the current one.", short="D"),
    _supported("export", "Variables of the job: NAME=VALUE, or NAME for yours, or NONE.",
               variable="SBATCH_EXPORT"),
    _supported("mail-type", "Events for --notify: NONE, BEGIN, END, FAIL, TIME_LIMIT or ALL;"
               " several with a comma."),
    _switch("requeue", "Restart all pods when one is evicted; otherwise it alone.",
            variable="SBATCH_REQUEUE"),
    _switch("no-requeue", "End the job when a pod is evicted.",
            variable="SBATCH_NO_REQUEUE"),
    _switch("hold", "Keep the job from starting until `batholith release`.", short="H"),
    Option(name="exclusive", argument=Argument.OPTIONAL, variable="SBATCH_EXCLUSIVE",
           help="No pods of other Volcano jobs on its nodes, and one pod on each."),
    Option(name="image", own=True, help="Image of the container."),
    _switch("workdir-rw", "The job may write to the working directory.", own=True),
    _switch("no-workdir", "Do not mount the working directory.", own=True),
    Option(name="workdir-claim", own=True, help="PersistentVolumeClaim for the working directory;"
           " with --kubernetes."),
    _switch("every-node", "Run the script in each of several pods.", own=True),
    Option(name="notify", own=True, help="URL or, while the command line waits for the job, command"
           " that is notified of its start, end, failure and time limit."),
    Option(name="priority-class", own=True, help="PriorityClass of the job."),
    Option(name="ignore", own=True, help="Options of the script to leave out: NAME,NAME…"),
)  # fmt: skip

_NO_MAIL = "there are no mails; use --notify"
_REASONS = {
    "mail-user": _NO_MAIL,
    "qos": "use --priority-class",
    "priority": "use --priority-class",
    "nice": "use --priority-class",
    "input": "the standard input of a job is empty",
    "nodelist": "use --constraint=kubernetes.io/hostname=NODE",
    "get-user-env": "name variables with --export",
    "export-file": "name variables with --export",
    "wrap": "it is an option of the command line",
    "wait": "it is an option of the command line",
    "test-only": "it is an option of the command line",
    "uid": "the job runs as the user of its image",
    "gid": "the job runs as the group of its image",
    "container": "use --image",
    "kill-on-invalid-dep": "a job fails if a dependency can no longer be met",
    "tmp": "there is no such limit",
}
_REQUIRED = """
batch bb bbf clusters:M cluster-constraint comment container
container-id core-spec:S cores-per-socket cpu-freq cpus-per-gpu deadline delay-boot
distribution:m exclude:x export-file extra extra-node-info:B gid gpu-bind gpu-freq
gpus-per-socket gres-flags hint input:i kill-on-invalid-dep licenses:L mail-user mcs-label
mem-bind mincpus network nodefile:F nodelist:w ntasks-per-core ntasks-per-gpu ntasks-per-socket
power prefer priority profile qos:q reservation segment sockets-per-node switches thread-spec
threads-per-core time-min tmp tres-bind tres-per-task uid wait-all-nodes wckey wrap
"""
_NONE = """
contiguous help:h ignore-pbs overcommit:O oversubscribe:s parsable quiet:Q reboot spread-job
stepmgr test-only usage use-min-nodes verbose:v version:V wait:W
"""
_OPTIONAL = "get-user-env nice no-kill:k propagate resv-ports"


def _refused() -> list[Option]:
    supported = {each.name for each in _SUPPORTED}
    found = []
    for argument, text in (
        (Argument.REQUIRED, _REQUIRED),
        (Argument.NONE, _NONE),
        (Argument.OPTIONAL, _OPTIONAL),
    ):
        for entry in text.split():
            name, _, short = entry.partition(":")
            if name not in supported:
                reason = _REASONS.get(name, "")
                found.append(Option(name=name, short=short, argument=argument, reason=reason))
    return found


OPTIONS: Mapping[str, Option] = {
    each.name: each for each in sorted((*_SUPPORTED, *_refused()), key=lambda each: each.name)
}
"""All options by name."""
SUPPORTED = tuple(_SUPPORTED)
"""Those that have an effect, in the order of the help."""
ALIASES = {"tasks-per-node": "ntasks-per-node"}
BY_SHORT: Mapping[str, Option] = {each.short: each for each in OPTIONS.values() if each.short}
BY_VARIABLE: Mapping[str, Option] = {
    each.variable: each for each in OPTIONS.values() if each.variable
}
SAME_SETTING = {
    **dict.fromkeys(("mem", "mem-per-cpu", "mem-per-gpu"), "memory"),
    **dict.fromkeys(("gres", "gpus", "gpus-per-node", "gpus-per-task"), "gpus"),
    **dict.fromkeys(("requeue", "no-requeue"), "requeue"),
}
"""Options that set the same: the last one counts."""


def long_option(text: str, *, own: bool) -> Option:
    """Return the option of a name or of its beginning, as getopt does; *own*: also Batholith's.

    Raises:
        ValueError: there is none, or several begin like this.
    """
    known = {name: each for name, each in OPTIONS.items() if own or not each.own}
    names = {**{name: name for name in known}, **ALIASES}
    if text in names:
        return known[names[text]]
    matching = {names[name] for name in names if text and name.startswith(text)}
    if len(matching) > 1:
        raise ValueError(f"is ambiguous: {', '.join(f'--{name}' for name in sorted(matching))}")
    if matching:
        return known[matching.pop()]
    if text in OPTIONS:
        raise ValueError("is an option of #BATHOLITH lines")
    from ...model.spelling import hint

    raise ValueError(f"is no option of sbatch; {hint(text, names)}" if text else "has no name")
