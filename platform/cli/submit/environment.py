"""Variables of Slurm that scripts read. Pure."""

from typing import Any

from ...model.names import TASK_INDEX
from .options import SubmitOptions
from .shape import Shape

_INDEX = {"fieldRef": {"fieldPath": f"metadata.labels['{TASK_INDEX}']"}}


def literal(text: str) -> str:
    """Return *text* so that Kubernetes replaces no ``$(NAME)`` in it, nor ``$$``."""
    return text.replace("$", "$$")


def slurm_variables(
    options: SubmitOptions, shape: Shape, *, number: int, name: str, submit_dir: str
) -> list[dict[str, Any]]:
    """Return the variables that are the same in all pods, and the index of the pod.

    Args:
        options: of the job.
        shape: of the job.
        number: the job's number, which is unique.
        name: of the job as Slurm has it.
        submit_dir: directory of the caller.
    """
    cpus_per_node = f"{shape.cpus}(x{shape.pods})" if shape.pods > 1 else str(shape.cpus)
    tasks = f"{shape.tasks_per_pod}(x{shape.pods})" if shape.pods > 1 else str(shape.tasks_per_pod)
    found: dict[str, object] = {
        "SLURM_JOB_ID": number,
        "SLURM_JOBID": number,
        "SLURM_JOB_NAME": name,
        "SLURM_JOB_PARTITION": options.queue or "default",
        "SLURM_SUBMIT_DIR": submit_dir,
        "SLURM_JOB_NUM_NODES": shape.pods,
        "SLURM_NNODES": shape.pods,
        "SLURM_NTASKS": shape.ntasks,
        "SLURM_NPROCS": shape.ntasks,
        "SLURM_TASKS_PER_NODE": tasks,
        "SLURM_CPUS_ON_NODE": shape.cpus,
        "SLURM_JOB_CPUS_PER_NODE": cpus_per_node,
        "SLURM_LOCALID": 0,
    }
    # As of sbatch, only if they were given.
    if options.account:
        found["SLURM_JOB_ACCOUNT"] = options.account
    if options.ntasks_per_node is not None:
        found["SLURM_NTASKS_PER_NODE"] = options.ntasks_per_node
    if options.cpus_per_task is not None:
        found["SLURM_CPUS_PER_TASK"] = shape.cpus_per_task
    if options.mem_per_cpu is not None:
        found["SLURM_MEM_PER_CPU"] = options.mem_per_cpu
    elif shape.memory is not None:
        found["SLURM_MEM_PER_NODE"] = shape.memory
    if shape.gpus:
        found["SLURM_GPUS_ON_NODE"] = shape.gpus
    variables = [{"name": key, "value": literal(str(value))} for key, value in found.items()]
    # The script of a pod with several tasks is none of them.
    is_task = shape.pods == 1 or shape.tasks_per_pod == 1
    ranks = ["SLURM_NODEID", *(["SLURM_PROCID"] if is_task else [])]
    index: dict[str, Any] = {"valueFrom": _INDEX} if shape.pods > 1 else {"value": "0"}
    host = {"name": "SLURMD_NODENAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    return [*variables, host, *({"name": rank, **index} for rank in ranks)]


def node_list(job: str, task: str, pods: int) -> str:
    """Return the host names of the pods; those of several are in the domain of the job.

    It refers to a variable of :func:`slurm_variables`, which is to precede it.
    """
    if pods == 1:
        return "$(SLURMD_NODENAME)"
    return ",".join(f"{job}-{task}-{index}.{job}" for index in range(pods))
