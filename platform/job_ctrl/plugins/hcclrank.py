"""``hcclrank``: an annotation with the pod's rank, for Ascend's device plugin."""

from collections.abc import Sequence

from ...model.job import Job
from ..pods import Pod
from . import arguments
from .pod_mutations import index, role, task_named

_RANK = "hccl/rankIndex"


class HcclRank:
    """Sets the annotation: the first ``RANK`` of a container, else masters before workers."""

    def __init__(self, given: Sequence[str]) -> None:
        read = arguments.read(given, {"master": "master", "worker": "worker"})
        self.complaints = read.complaints
        self._master = read.text("master")
        self._worker = read.text("worker")

    def on_pod_create(self, pod: Pod, job: Job) -> None:
        """Add the annotation, unless there is one."""
        notes = pod["metadata"]["annotations"]
        rank = notes.get(_RANK) or _given(pod) or self._numbered(pod, job)
        if rank:
            notes[_RANK] = rank

    def _numbered(self, pod: Pod, job: Job) -> str:
        if role(pod) == self._master:
            return str(index(pod))
        if role(pod) != self._worker:
            return ""
        master = task_named(job, self._master)
        return str(index(pod) + (master.replicas if master else 0))


def _given(pod: Pod) -> str:
    """The first value of a variable RANK that is written out."""
    variables = (
        variable
        for container in pod["spec"]["containers"]
        for variable in container.get("env") or ()
    )
    return next((v["value"] for v in variables if v["name"] == "RANK" and v.get("value")), "")
