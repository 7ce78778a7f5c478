"""Marks in ``status.controlledResources`` of a Job.

Volcano keeps ``plugin-<name>`` and ``volume-pvc-<claim>`` there and ignores other keys. The keys
that begin with ``batholith-`` are written in the same status write as the transition that they
belong to, so that a crash never separates the two. A job has at most one mark of each key.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from .job import JobStatus

PLUGIN_PREFIX = "plugin-"
"""Prefix of the keys of the job's plugins; the value is the plugin's name."""
PVC_PREFIX = "volume-pvc-"
"""Prefix of the keys of the job's PersistentVolumeClaims; the value is the claim's name."""
COMMAND_UID = "batholith-command-uid"
"""Key of the uid of the last Command that changed the job's phase."""
COMMAND_PHASE = "batholith-command-phase"
"""Key of the phase that this Command led to."""
RESTART_TARGET = "batholith-restart-target"
"""Key of what the last restart replaces, if not the whole job: ``task/NAME``, ``pod/NAME`` or
``partition/TASK/ID``."""

_LEGACY_COMMAND = re.compile(r"Command \S+ \(([^()\s]+)\)")


@dataclass(frozen=True, slots=True)
class ExecutedCommand:
    """A Command that changed the job's phase."""

    uid: str
    phase: str


def executed_commands(status: JobStatus) -> Iterator[ExecutedCommand]:
    """Yield the executed Commands that *status* names.

    Earlier versions named the Command in ``state.message`` alone. Such a status may hold the mark
    of an older Command if replicas of both versions have been the leader.
    """
    marks = status.controlled_resources
    uid = marks.get(COMMAND_UID, "")
    if uid:
        yield ExecutedCommand(uid, marks.get(COMMAND_PHASE, ""))
    legacy = _LEGACY_COMMAND.match(status.state.message)
    if legacy is not None and legacy[1] != uid:
        yield ExecutedCommand(legacy[1], status.state.phase)
