"""``mpi``: set ``MPI_HOST`` to the workers' names in the master; declare the ssh port."""

from collections.abc import Sequence

from ...model.job import Job
from ..pods import Pod
from . import arguments
from .pod_mutations import add_env, add_port, containers, find_task, hostnames, task_name

_DEFAULT_PORT = 22
_PORT_NAME = "mpijob-port"


class Mpi:
    """Sets ``MPI_HOST``, and declares a port."""

    def __init__(self, args: Sequence[str]) -> None:
        read = arguments.parse(
            args, {"master": "master", "worker": "worker", "port": _DEFAULT_PORT}
        )
        self.warnings = read.warnings
        self._master = read.text("master")
        self._worker = read.text("worker")
        self._port = read.number("port")

    def on_pod_create(self, pod: Pod, job: Job) -> None:
        """Add port and variable; a master without workers is not changed."""
        workers = find_task(job, self._worker)
        is_master = task_name(pod) == self._master
        if is_master and workers is None:
            return
        for container in containers(pod):
            add_port(container, _PORT_NAME, self._port)
        if is_master and workers is not None:
            listed = ",".join(domain for _, domain in hostnames(job, workers))
            add_env(pod, [{"name": "MPI_HOST", "value": listed}])
