"""Containers that run on without an agent: their pod is gone, or the whole cluster is to stop."""

from pathlib import Path

from ..runtime.runs import kill_tagged
from .records import PodDir


def kill_orphan(pod_dir: PodDir, uid: str) -> None:
    """Make sure that nothing of the pod runs or ever will."""
    for name in pod_dir.containers():
        for run in pod_dir.runs(name):
            if run.read_claim() is None:
                run.cancel()
    kill_tagged(uid)


def stop_all_pods(data_dir: Path) -> list[str]:
    """End all containers that an agent, killed before it could, left in its folder.

    Returns the pods that were running, as ``namespace/name``. The next agent finds their ends and
    applies their restart policies. Blocks for some milliseconds a pod.
    """
    ended = []
    for folder, record in list(PodDir.all(data_dir)):
        if folder.is_busy:
            kill_orphan(folder, record.uid)
            ended.append(f"{record.namespace}/{record.name}")
    return ended
