"""The annotation by which the recorder of the history states that the end of a job is recorded.

Its value names the end: an annotation of an earlier state, or one copied from another job, does not
count. Controllers that wait for it do so at most :data:`TIMEOUT`.
"""

from collections.abc import Mapping

RECORDED = "batholith.io/recorded"
"""Annotation of a finished job: phase, time of the end, resourceVersion of the recorded state."""

TIMEOUT = 600.0
"""Maximum of the seconds for which the deletion of an expired job waits for the recorder."""


def recorded_value(phase: str, finished_at: str, resource_version: str) -> str:
    """Return the value of the annotation of a job that has ended at *finished_at*."""
    return f"{phase} {finished_at} {resource_version}"


def is_recorded(annotations: Mapping[str, str], finished_at: str) -> bool:
    """Return whether the end of a job at *finished_at*, as its status has it, is recorded."""
    fields = annotations.get(RECORDED, "").split(" ")
    return len(fields) == 3 and fields[1] == finished_at


def seconds_to_wait(annotations: Mapping[str, str], finished_at: str, left: float) -> float:
    """Return in how many seconds a job may be deleted that expires in *left* seconds."""
    return left if is_recorded(annotations, finished_at) else left + TIMEOUT
