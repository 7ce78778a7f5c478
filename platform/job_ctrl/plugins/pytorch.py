"""``pytorch``: set the variables of ``torch.distributed``: master address, world size and rank."""

from collections.abc import Sequence
from typing import Any

from ...model.job import Job, TaskSpec
from ..pods import Pod
from . import arguments
from .pod_mutations import add_port, append_env, find_task, fqdn, task_index, task_name

_PORT = 23456
_PORT_NAME = "pytorchjob-port"
_WAIT_CONTAINER = "wait-for-master"
_POLL_INTERVAL = 2
"""Seconds between two checks of the master's port."""

_WAIT_SCRIPT = """\
echo "waiting for {host}:{port}"
waited=0
while ! {{ nc -z {host} {port} || bash -c 'true > /dev/tcp/{host}/{port}'; }} 2>/dev/null; do
  if [ "$waited" -ge {limit} ]; then
    echo "{host}:{port} did not answer within {limit} s"
    exit 1
  fi
  echo "{host}:{port} does not answer yet (after $waited s)"
  sleep {interval}
  waited=$((waited + {interval}))
done
echo "{host}:{port} answers\""""


class PyTorch:
    """Sets ``MASTER_ADDR``, ``MASTER_PORT``, ``WORLD_SIZE`` and ``RANK``.

    Masters are numbered before workers, so that no two pods have the same rank.
    """

    def __init__(self, args: Sequence[str]) -> None:
        read = arguments.parse(
            args,
            {
                "master": "master",
                "worker": "worker",
                "port": _PORT,
                "wait-master-enabled": False,
                "wait-master-timeout": 300,
                "wait-master-image": "busybox:1.36.1",
            },
        )
        self.warnings = read.warnings
        self._master = read.text("master")
        self._worker = read.text("worker")
        self._port = read.number("port")
        self._wait_for_master = read.boolean("wait-master-enabled")
        self._wait_timeout = read.number("wait-master-timeout")
        self._image = read.text("wait-master-image")

    def validate_job(self, job: Job) -> Sequence[str]:
        """Warn about a job without a master task."""
        if find_task(job, self._master) is not None:
            return ()
        return (f"plugin pytorch changes no pod: no task is named {self._master!r}",)

    def on_pod_create(self, pod: Pod, job: Job) -> None:
        """Declare the port, add the variables, and the init container that waits for the master."""
        master, worker = (find_task(job, name) for name in (self._master, self._worker))
        if master is None:
            return
        address = fqdn(job, master)
        variables: dict[str, object] = {
            "MASTER_ADDR": address,
            "MASTER_PORT": self._port,
            "WORLD_SIZE": master.replicas + (worker.replicas if worker else 0),
        }
        if task_name(pod) in (self._master, self._worker):
            variables["RANK"] = task_index(pod) + self._first_rank(task_name(pod), master)
        for container in pod["spec"]["containers"]:
            add_port(container, _PORT_NAME, self._port)
            env = [{"name": name, "value": str(value)} for name, value in variables.items()]
            append_env(container, env)
        if self._wait_for_master and task_name(pod) == self._worker:
            self._add_wait_container(pod["spec"], address)

    def _first_rank(self, task: str, master: TaskSpec) -> int:
        return 0 if task == self._master else master.replicas

    def _add_wait_container(self, spec: dict[str, Any], host: str) -> None:
        existing = spec.get("initContainers") or []
        if any(container["name"] == _WAIT_CONTAINER for container in existing):
            return
        script = _WAIT_SCRIPT.format(
            host=host, port=self._port, limit=self._wait_timeout, interval=_POLL_INTERVAL
        )
        waiter = {"name": _WAIT_CONTAINER, "image": self._image, "command": ["sh", "-c", script]}
        spec["initContainers"] = [*existing, waiter]
