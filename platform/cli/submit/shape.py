"""How many pods a job has, and what each of them requests. Pure."""

from dataclasses import dataclass

from .errors import SubmitError
from .options import SubmitOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Pods and requests. A script may start all tasks of its pod; a command is one task."""

    pods: int
    tasks_per_pod: int
    cpus_per_task: int
    gpus: int
    """Of each pod."""
    memory: int | None
    """MiB of each pod; ``None`` if nothing is requested."""

    @property
    def ntasks(self) -> int:
        """Tasks of all pods."""
        return self.pods * self.tasks_per_pod

    @property
    def cpus(self) -> int:
        """CPUs of each pod."""
        return self.tasks_per_pod * self.cpus_per_task


def shape_of(options: SubmitOptions, *, is_script: bool) -> Shape:
    """Return the pods of a job.

    Raises:
        SubmitError: the numbers contradict each other, or have no meaning here.
    """
    pods, tasks = _of_script(options) if is_script else _of_command(options)
    cpus_per_task = options.cpus_per_task or 1
    gpus = _gpus(options, pods, tasks)
    memory = options.mem
    if options.mem_per_cpu is not None:
        memory = options.mem_per_cpu * cpus_per_task * tasks
    if options.mem_per_gpu is not None:
        if not gpus:
            raise _error(options, "mem-per-gpu", text="the job has no GPUs")
        memory = options.mem_per_gpu * gpus
    return Shape(
        pods=pods, tasks_per_pod=tasks, cpus_per_task=cpus_per_task, gpus=gpus, memory=memory
    )


def _of_script(options: SubmitOptions) -> tuple[int, int]:
    """Return the pods and the tasks of each: a pod is what a node is to the script."""
    per_node, ntasks = options.ntasks_per_node, options.ntasks
    pods = options.nodes or (-(-ntasks // per_node) if ntasks and per_node else 1)
    ntasks = ntasks or pods * (per_node or 1)
    if per_node and ntasks > pods * per_node:
        text = f"{ntasks} tasks are more than {per_node} on each of {pods} nodes"
        raise _error(options, "ntasks", text=text)
    if ntasks % pods:
        text = f"{ntasks} tasks cannot be divided among {pods} nodes, whose pods are equal"
        raise _error(options, "ntasks", "nodes", text=text)
    if pods > 1 and not options.every_node:
        text = (
            f"{pods} nodes are not supported without --every-node, which runs the script in each of"
            f" {pods} pods: there is no srun that starts tasks on other nodes"
        )
        raise _error(options, "nodes", "ntasks-per-node", text=text)
    return pods, ntasks // pods


def _of_command(options: SubmitOptions) -> tuple[int, int]:
    """Return the pods, one for each task."""
    if options.every_node:
        raise _error(options, "every-node", text="a command runs in each pod anyway")
    if options.ntasks_per_node not in (None, 1):
        text = "the tasks of a command are pods, which the scheduler distributes: use --ntasks"
        raise _error(options, "ntasks-per-node", text=text)
    if options.nodes is not None and options.ntasks not in (None, options.nodes):
        text = "the tasks of a command are pods, which the scheduler distributes: use --ntasks only"
        raise _error(options, "nodes", text=text)
    return options.ntasks or options.nodes or 1, 1


def _gpus(options: SubmitOptions, pods: int, tasks: int) -> int:
    """Return the GPUs of each pod."""
    if options.gpus is not None:
        if options.gpus % pods:
            text = f"{options.gpus} GPUs cannot be divided among {pods} equal pods"
            raise _error(options, "gpus", text=text)
        return options.gpus // pods
    if options.gpus_per_task is not None:
        return options.gpus_per_task * tasks
    return options.gpus_per_node or 0


def _error(options: SubmitOptions, *names: str, text: str) -> SubmitError:
    return SubmitError([f"{options.where(*names)}: {text}"])
