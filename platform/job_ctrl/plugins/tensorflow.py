"""``tensorflow``: set ``TF_CONFIG`` to the cluster and the pod's task in it."""

from collections.abc import Mapping, Sequence

import msgspec

from ...model.job import Job
from ..pods import Pod
from . import arguments
from .pod_mutations import append_env, find_task, hostnames, task_index, task_name

_ROLES = ("ps", "worker", "chief", "evaluator")
_DEFAULT_PORT = 2222


class TensorFlow:
    """Sets ``TF_CONFIG`` in all containers of a job that has more than one pod."""

    def __init__(self, args: Sequence[str]) -> None:
        names = {name: name for name in _ROLES}
        read = arguments.parse(args, {**names, "port": _DEFAULT_PORT})
        self.warnings = read.warnings
        self._tasks = {name: read.text(name) for name in _ROLES}
        self._port = read.number("port")

    def on_pod_create(self, pod: Pod, job: Job) -> None:
        """Add the variable."""
        if len(job.spec.tasks) == 1 and job.spec.tasks[0].replicas == 1:
            return
        task = task_name(pod)
        known = {name: kind for kind, name in self._tasks.items()}
        own_task = {"type": known.get(task, task), "index": task_index(pod)}
        config = {"cluster": self._cluster(job), "task": own_task}
        value = msgspec.json.encode(config).decode()
        for container in pod["spec"]["containers"]:
            append_env(container, [{"name": "TF_CONFIG", "value": value}])

    def _cluster(self, job: Job) -> Mapping[str, list[str]]:
        cluster = {}
        for kind, name in self._tasks.items():
            task = find_task(job, name)
            if task is not None and task.replicas:
                cluster[kind] = [f"{domain}:{self._port}" for _, domain in hostnames(job, task)]
        return cluster
