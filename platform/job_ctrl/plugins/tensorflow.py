"""``tensorflow``: every container learns the cluster and its place in it from ``TF_CONFIG``."""

from collections.abc import Mapping, Sequence

import msgspec

from ...model.job import Job
from ..pods import Pod
from . import arguments
from .pod_mutations import append_env, hosts, index, role, task_named

_ROLES = ("ps", "worker", "chief", "evaluator")
_DEFAULT_PORT = 2222


class TensorFlow:
    """Sets ``TF_CONFIG`` in all containers of a job that has more than one pod."""

    def __init__(self, given: Sequence[str]) -> None:
        names = {name: name for name in _ROLES}
        read = arguments.read(given, {**names, "port": _DEFAULT_PORT})
        self.complaints = read.complaints
        self._tasks = {name: read.text(name) for name in _ROLES}
        self._port = read.number("port")

    def on_pod_create(self, pod: Pod, job: Job) -> None:
        """Add the variable."""
        if len(job.spec.tasks) == 1 and job.spec.tasks[0].replicas == 1:
            return
        task = role(pod)
        known = {name: kind for kind, name in self._tasks.items()}
        place = {"type": known.get(task, task), "index": index(pod)}
        config = {"cluster": self._cluster(job), "task": place}
        value = msgspec.json.encode(config).decode()
        for container in pod["spec"]["containers"]:
            append_env(container, [{"name": "TF_CONFIG", "value": value}])

    def _cluster(self, job: Job) -> Mapping[str, list[str]]:
        cluster = {}
        for kind, name in self._tasks.items():
            task = task_named(job, name)
            if task is not None and task.replicas:
                cluster[kind] = [f"{domain}:{self._port}" for _, domain in hosts(job, task)]
        return cluster
