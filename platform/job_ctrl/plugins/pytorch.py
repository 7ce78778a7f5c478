"""``pytorch``: every container learns where the master is, how many there are, and its rank."""

from collections.abc import Sequence
from typing import Any

from ...model.job import Job, TaskSpec
from ..pods import Pod
from . import arguments
from .pod_mutations import add_port, append_env, domain, index, role, task_named

_PORT = 23456
_PORT_NAME = "pytorchjob-port"
_WAITER = "wait-for-master"
_PAUSE = 2
"""Seconds between two looks at the master's port."""

_WAIT = """\
echo "waiting for {host}:{port}"
waited=0
while ! {{ nc -z {host} {port} || bash -c 'true > /dev/tcp/{host}/{port}'; }} 2>/dev/null; do
  if [ "$waited" -ge {limit} ]; then
    echo "{host}:{port} did not answer within {limit} s"
    exit 1
  fi
  echo "{host}:{port} does not answer yet (after $waited s)"
  sleep {pause}
  waited=$((waited + {pause}))
done
echo "{host}:{port} answers\""""


class PyTorch:
    """Sets ``MASTER_ADDR``, ``MASTER_PORT``, ``WORLD_SIZE`` and ``RANK``.

    Masters are numbered before workers, so that no two pods have the same rank.
    """

    def __init__(self, given: Sequence[str]) -> None:
        read = arguments.read(
            given,
            {
                "master": "master",
                "worker": "worker",
                "port": _PORT,
                "wait-master-enabled": False,
                "wait-master-timeout": 300,
                "wait-master-image": "busybox:1.36.1",
            },
        )
        self.complaints = read.complaints
        self._master = read.text("master")
        self._worker = read.text("worker")
        self._port = read.number("port")
        self._waits = read.switch("wait-master-enabled")
        self._limit = read.number("wait-master-timeout")
        self._image = read.text("wait-master-image")

    def complaints_about(self, job: Job) -> Sequence[str]:
        """A job without master."""
        if task_named(job, self._master) is not None:
            return ()
        return (f"plugin pytorch changes no pod: no task is named {self._master!r}",)

    def on_pod_create(self, pod: Pod, job: Job) -> None:
        """Declare the port, add the variables; let workers wait if that is wanted."""
        master, worker = (task_named(job, name) for name in (self._master, self._worker))
        if master is None:
            return
        address = domain(job, master)
        variables: dict[str, object] = {
            "MASTER_ADDR": address,
            "MASTER_PORT": self._port,
            "WORLD_SIZE": master.replicas + (worker.replicas if worker else 0),
        }
        if role(pod) in (self._master, self._worker):
            variables["RANK"] = index(pod) + self._first_rank(role(pod), master)
        for container in pod["spec"]["containers"]:
            add_port(container, _PORT_NAME, self._port)
            env = [{"name": name, "value": str(value)} for name, value in variables.items()]
            append_env(container, env)
        if self._waits and role(pod) == self._worker:
            self._let_wait(pod["spec"], address)

    def _first_rank(self, task: str, master: TaskSpec) -> int:
        return 0 if task == self._master else master.replicas

    def _let_wait(self, spec: dict[str, Any], host: str) -> None:
        there = spec.get("initContainers") or []
        if any(container["name"] == _WAITER for container in there):
            return
        script = _WAIT.format(host=host, port=self._port, limit=self._limit, pause=_PAUSE)
        waiter = {"name": _WAITER, "image": self._image, "command": ["sh", "-c", script]}
        spec["initContainers"] = [*there, waiter]
