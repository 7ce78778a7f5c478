"""Signals of this process that the pods of a job get, too."""

import queue
import signal
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import typer

from .connection import printable

if TYPE_CHECKING:
    from ...client import JobHandle

SIGNALS = (signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


class SignalForwarder:
    """Sends :data:`SIGNALS` to the running pods of a job, instead of ending this process."""

    def __init__(self) -> None:
        """Keep signals from now on, unless they are ignored, as by nohup."""
        self._received: queue.SimpleQueue[int] = queue.SimpleQueue()
        if threading.current_thread() is not threading.main_thread():
            return  # which Python does not permit
        for each in SIGNALS:
            if signal.getsignal(each) == signal.SIG_DFL:
                signal.signal(each, lambda number, _: self._received.put(number))

    def start(self, job: "JobHandle", connection: Mapping[str, Any]) -> None:
        """Send what was received, and what will be, to the pods of *job*.

        *connection* has the values of the flags that choose the cluster. The pods are reached
        through the Kubernetes API, since the REST API has no streams of pods.
        """

        def run() -> None:
            while True:
                name = signal.Signals(self._received.get()).name.removeprefix("SIG")
                try:
                    _forward(job, connection, name)
                except Exception as error:  # the job still runs
                    _report(name, str(error))

        threading.Thread(target=run, name="signals", daemon=True).start()


def _forward(job: "JobHandle", connection: Mapping[str, Any], name: str) -> None:
    from .interactive import find_credentials, send_signal
    from .shared import CommandFailedError

    credentials = find_credentials(connection)
    pods = [pod.name for pod in job.pods() if pod.phase == "Running"]
    if not pods:
        _report(name, "no pod of the job runs")
    for pod in pods:
        try:
            send_signal(credentials, (job.namespace, pod), name)
        except CommandFailedError as error:  # the others get it nevertheless
            _report(name, str(error))


def _report(name: str, problem: str) -> None:
    typer.echo(f"batholith: SIG{name}: {printable(problem)}", err=True)
