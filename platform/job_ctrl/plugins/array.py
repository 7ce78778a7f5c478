"""``array``: set the index, or the parameters, of each member of an array job."""

from collections.abc import Sequence

from ...model.arrays import PARAMETER_PREFIX, ArrayMembers
from ...model.job import Job
from ...model.names import JOB_ID
from ..pods import Pod
from .pod_mutations import add_env, task_index


class Array:
    """Sets ``SLURM_ARRAY_TASK_ID`` and others, and ``BATHOLITH_PARAM_…``.

    If the job has a number, ``SLURM_JOB_ID`` is this number plus that of the member.
    """

    def __init__(self, arguments: Sequence[str]) -> None:
        """*arguments* are those of :mod:`batholith.model.arrays`.

        Raises:
            ValueError: they are malformed.
        """
        self._members = ArrayMembers.parse(arguments)

    def on_pod_create(self, pod: Pod, job: Job) -> None:
        """Add the variables.

        Raises:
            IndexError: the task has more pods than the array has members.
        """
        member, indices = task_index(pod), self._members.indices
        parameters = self._members.values(member)
        found = {f"{PARAMETER_PREFIX}{name}": value for name, value in parameters.items()}
        found |= {
            "SLURM_ARRAY_TASK_ID": str(indices[member]),
            "SLURM_ARRAY_TASK_COUNT": str(len(indices)),
            "SLURM_ARRAY_TASK_MIN": str(indices[0]),
            "SLURM_ARRAY_TASK_MAX": str(indices[-1]),
            "SLURM_ARRAY_TASK_STEP": str(self._members.step),
        }
        number = job.metadata.labels.get(JOB_ID, "")
        if number.isdecimal():
            found["SLURM_ARRAY_JOB_ID"] = number
            found["SLURM_JOB_ID"] = found["SLURM_JOBID"] = str(int(number) + member)
        add_env(
            pod,
            [{"name": name, "value": value.replace("$", "$$")} for name, value in found.items()],
        )
