"""Marks in ``status.controlledResources`` of a Job.

Volcano keeps ``plugin-<name>`` and ``volume-pvc-<claim>`` there and ignores other keys. The keys
that begin with ``batholith-`` are written in the same status write as the transition that they
belong to, so that a crash never separates the two. A job has at most one mark of each key.
"""

from dataclasses import dataclass

import msgspec

from .job import JobStatus

PLUGIN_PREFIX = "plugin-"
"""Prefix of the keys of the job's plugins; the value is the plugin's name."""
PVC_PREFIX = "volume-pvc-"
"""Prefix of the keys of the job's PersistentVolumeClaims; the value is the claim's name."""
COMMAND_UID = "batholith-command-uid"
"""Key of the uid of the last Command that changed the job's phase."""
COMMAND_PHASE = "batholith-command-phase"
"""Key of the phase that this Command led to."""
OPERATIONS = "batholith-operations"
"""Key of the results of the last Commands that name an operation (annotation
``batholith.io/operation``), oldest first, as JSON: a Command that is created again for the same
operation is not executed again."""
MAX_OPERATIONS = 8
"""Maximum number of these results."""
RESTART_TARGET = "batholith-restart-target"
"""Key of what the last restart replaces, if not the whole job: ``task/NAME``, ``pod/NAME`` or
``partition/TASK/ID``."""
SECONDS_RUN = "batholith-seconds-run"
"""Key of the seconds for which a job with a time limit has been in phase Running before."""
MET_DEPENDENCIES = "batholith-met-dependencies"
"""Key of the dependencies of the job that were met, separated by commas."""


@dataclass(frozen=True, slots=True)
class ExecutedCommand:
    """A Command that changed the job's phase."""

    uid: str
    phase: str


class OperationResult(msgspec.Struct, frozen=True, array_like=True):
    """What the job controller did with the Command of an operation."""

    operation: str
    executed: bool
    text: str
    """The phase that an executed Command led to, else the reason why it was not executed."""


_RESULTS = msgspec.json.Decoder(tuple[OperationResult, ...])


def operation_results(status: JobStatus) -> tuple[OperationResult, ...]:
    """Return the results of operations that *status* holds, oldest first."""
    mark = status.controlled_resources.get(OPERATIONS)
    if mark is None:
        return ()
    try:
        return _RESULTS.decode(mark)
    except msgspec.MsgspecError:
        return ()  # written by another client


def with_result(status: JobStatus, result: OperationResult) -> dict[str, str]:
    """Return the marks of *status* with *result* as the last one."""
    results = (*operation_results(status), result)[-MAX_OPERATIONS:]
    mark = msgspec.json.encode(results).decode()
    return {**status.controlled_resources, OPERATIONS: mark}


def executed_command(status: JobStatus) -> ExecutedCommand | None:
    """Return the last Command that changed the job's phase, according to *status*."""
    marks = status.controlled_resources
    uid = marks.get(COMMAND_UID, "")
    return ExecutedCommand(uid, marks.get(COMMAND_PHASE, "")) if uid else None
