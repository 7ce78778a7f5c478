"""The status of a Job as JSON, with the fields that kube-controller-manager writes. Pure."""

from typing import Any

import msgspec

from .core_types import JobStatus, UncountedPods

_ALWAYS = ("ready", "terminating")
"""Numbers that are written even if 0."""


def to_json(status: JobStatus) -> dict[str, Any]:
    """Return *status* as the API server stores it."""
    encoded: dict[str, Any] = msgspec.to_builtins(status)
    for name in _ALWAYS:
        if (number := getattr(status, name)) is not None:
            encoded[name] = number
    uncounted = status.uncounted_terminated_pods
    if uncounted is not None:
        encoded["uncountedTerminatedPods"] = msgspec.to_builtins(uncounted)
    return encoded


def normalized(status: JobStatus) -> JobStatus:
    """Return *status* with a list of uncounted pods, as the controller always writes one."""
    if status.uncounted_terminated_pods is not None:
        return status
    return msgspec.structs.replace(status, uncounted_terminated_pods=UncountedPods())
