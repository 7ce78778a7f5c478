"""``mpi``: the master learns the workers' names from ``MPI_HOST``; all declare the ssh port."""

from collections.abc import Sequence

from ...model.job import Job
from ..pods import Pod
from . import arguments
from .pod_mutations import add_env, add_port, containers, hosts, role, task_named

_DEFAULT_PORT = 22
_PORT_NAME = "mpijob-port"


class Mpi:
    """Sets ``MPI_HOST``, and declares a port."""

    def __init__(self, given: Sequence[str]) -> None:
        read = arguments.read(
            given, {"master": "master", "worker": "worker", "port": _DEFAULT_PORT}
        )
        self.complaints = read.complaints
        self._master = read.text("master")
        self._worker = read.text("worker")
        self._port = read.number("port")

    def on_pod_create(self, pod: Pod, job: Job) -> None:
        """Add port and variable; a master without workers is left as it is."""
        workers = task_named(job, self._worker)
        leads = role(pod) == self._master
        if leads and workers is None:
            return
        for container in containers(pod):
            add_port(container, _PORT_NAME, self._port)
        if leads and workers is not None:
            listed = ",".join(domain for _, domain in hosts(job, workers))
            add_env(pod, [{"name": "MPI_HOST", "value": listed}])
