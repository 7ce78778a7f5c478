"""Kill containers that run without an agent: orphans, and those a killed agent left running."""

import os
from pathlib import Path

from ...network.node_namespace import is_entered
from ..network.namespaces import NamespaceNetwork
from ..runtime.runs import kill_tagged
from .records import PodDir


def kill_orphan(pod_dir: PodDir, uid: str) -> None:
    """Ensure that no container of the pod runs or will start."""
    for name in pod_dir.containers():
        for run in pod_dir.runs(name):
            run.claim_or_cancel()
    kill_tagged(uid)


def stop_all_pods(data_dir: Path) -> list[str]:
    """Kill all containers that a killed agent left running, and remove the network of its pods.

    Returns the pods that were running, as ``namespace/name``. The next agent recovers their exits
    and applies their restart policies. Blocks for some milliseconds per pod.
    """
    stopped = []
    for pod_dir, record in list(PodDir.all(data_dir)):
        if pod_dir.is_busy:
            kill_orphan(pod_dir, record.uid)
            stopped.append(f"{record.namespace}/{record.name}")
    if os.geteuid() == 0 or is_entered():  # else it has ended with its supervisor
        NamespaceNetwork(data_dir).remove_all()
    return stopped
