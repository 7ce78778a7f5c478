"""Commands on this machine that are notified of a job while the command line waits for it."""

import os
import subprocess
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import typer

from ...model.job_reasons import Reason
from ...model.notifications import NotifyEvent, event_of_phase, includes
from ...wire.jobs import Phase

if TYPE_CHECKING:
    from ...client import JobHandle
    from ...wire.jobs import JobSummary


class CommandHook:
    """Runs a command at the events of one job, which it finds in its environment.

    What others have written, such as the message of the job, is in variables only: there is no
    shell.
    """

    def __init__(self, arguments: Sequence[str], events: Collection[NotifyEvent]) -> None:
        self._arguments = arguments
        self._events = events
        self._phase = ""

    def observe(self, job: "JobSummary") -> None:
        """Run the command if the job has entered a phase that is an event."""
        if job.phase == self._phase:
            return
        self._phase = job.phase
        event = event_of_phase(job.phase)
        if job.phase == Phase.TERMINATING and job.reason == Reason.DEADLINE_EXCEEDED:
            event = NotifyEvent.TIME_LIMIT
        if event is not None and includes(self._events, event):
            self._run(event, job)

    def wait_started(self, job: "JobHandle") -> None:
        """Wait until the job runs or has finished, and run the command for that."""
        job.wait(
            condition=lambda state: state.phase == Phase.RUNNING or state.is_finished,
            on_change=self.observe,
        )

    def _run(self, event: NotifyEvent, job: "JobSummary") -> None:
        variables = {
            "BATHOLITH_EVENT": str(event),
            "BATHOLITH_JOB": job.name,
            "BATHOLITH_KIND": job.kind,
            "BATHOLITH_NAMESPACE": job.namespace,
            "BATHOLITH_PHASE": job.phase,
            "BATHOLITH_REASON": job.reason,
            "BATHOLITH_MESSAGE": job.message,
        }
        name = self._arguments[0]
        try:
            done = subprocess.run(  # noqa: S603 - the caller's own command
                self._arguments,
                env={**os.environ, **variables},
                stdin=subprocess.DEVNULL,
                check=False,
            )
        except OSError as error:
            text = f"cannot run {name}: {error.strerror}"
        else:
            text = f"{name} exited with {done.returncode}" if done.returncode else ""
        if text:
            typer.echo(f"batholith: --notify: {text}", err=True)
