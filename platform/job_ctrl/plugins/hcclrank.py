"""``hcclrank``: annotate the pod with its rank, for Ascend's device plugin."""

from collections.abc import Sequence

from ...model.job import Job
from ..pods import Pod
from . import arguments
from .pod_mutations import find_task, task_index, task_name

_RANK = "hccl/rankIndex"


class HcclRank:
    """Sets the annotation: the first ``RANK`` of a container, else masters before workers."""

    def __init__(self, args: Sequence[str]) -> None:
        read = arguments.parse(args, {"master": "master", "worker": "worker"})
        self.warnings = read.warnings
        self._master = read.text("master")
        self._worker = read.text("worker")

    def on_pod_create(self, pod: Pod, job: Job) -> None:
        """Add the annotation, unless the template sets it."""
        annotations = pod["metadata"]["annotations"]
        rank = annotations.get(_RANK) or _rank_from_env(pod) or self._default_rank(pod, job)
        if rank:
            annotations[_RANK] = rank

    def _default_rank(self, pod: Pod, job: Job) -> str:
        if task_name(pod) == self._master:
            return str(task_index(pod))
        if task_name(pod) != self._worker:
            return ""
        master = find_task(job, self._master)
        return str(task_index(pod) + (master.replicas if master else 0))


def _rank_from_env(pod: Pod) -> str:
    """Return the first literal value of a variable ``RANK``."""
    variables = (
        variable
        for container in pod["spec"]["containers"]
        for variable in container.get("env") or ()
    )
    return next((v["value"] for v in variables if v["name"] == "RANK" and v.get("value")), "")
