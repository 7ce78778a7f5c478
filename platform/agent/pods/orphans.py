"""Containers that run on without an agent: their pod is gone, or the whole cluster is to stop."""

from pathlib import Path

from ..runtime.runs import sweep
from .records import PodFolder


def end_orphan(folder: PodFolder, uid: str) -> None:
    """Make sure that nothing of the pod runs or ever will."""
    for name in folder.containers():
        for run in folder.runs(name):
            if run.claim() is None:
                run.call_off()
    sweep(uid)


def end_pods(data_dir: Path) -> list[str]:
    """End all containers that an agent, killed before it could, left in its folder.

    Returns the pods that were running, as ``namespace/name``. The next agent finds their ends and
    applies their restart policies. Blocks for some milliseconds a pod.
    """
    ended = []
    for folder, record in list(PodFolder.all(data_dir)):
        if folder.is_busy:
            end_orphan(folder, record.uid)
            ended.append(f"{record.namespace}/{record.name}")
    return ended
