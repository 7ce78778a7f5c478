"""For how long the nodes of a gang are kept for it, as the annotation of its owner states it."""

from collections.abc import Mapping

from .names import KEEP_NODES
from .run_times import seconds_of

MAX_SECONDS = 600.0
"""Nodes that are kept are idle."""


def keep_seconds_of(annotations: Mapping[str, str]) -> float:
    """Return for how many seconds nodes are kept; 0 without a valid annotation."""
    return min(seconds_of(annotations, KEEP_NODES) or 0.0, MAX_SECONDS)


def keep_nodes_error(annotations: Mapping[str, str]) -> str:
    """Return why the annotation of a job is invalid, or an empty text."""
    if (
        KEEP_NODES not in annotations
        or 0 < (seconds_of(annotations, KEEP_NODES) or 0) <= MAX_SECONDS
    ):
        return ""
    return f"metadata.annotations[{KEEP_NODES}]: must be a duration above zero and at most 10m"
