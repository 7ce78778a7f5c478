"""``env``: set the index of the pod within its task as environment variables."""

from collections.abc import Sequence

from ...model.job import Job
from ..pods import Pod
from .pod_mutations import add_env


class Env:
    """Sets ``VC_TASK_INDEX`` (and ``VK_TASK_INDEX``, its older name)."""

    def __init__(self, arguments: Sequence[str]) -> None:
        """*arguments* are ignored."""

    def on_pod_create(self, pod: Pod, job: Job) -> None:
        """Add both variables."""
        index = str(pod["metadata"]["name"]).rpartition("-")[2]
        names = ("VK_TASK_INDEX", "VC_TASK_INDEX")
        add_env(pod, [{"name": name, "value": index} for name in names])
