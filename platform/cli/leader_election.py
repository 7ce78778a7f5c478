"""Leader election of a process: its flags, its life, and the end when the Lease is lost."""

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from .flag_groups import ClusterFlags
from .manager import Telemetry, credentials, new_client
from .process import exit_now

if TYPE_CHECKING:
    from ..kube.client.client import Client
    from ..kube.client.events import EventRecorder
    from ..machinery.leader_election import LeaderElectionConfig, LeaderElector

log = logging.getLogger(__name__)

EVENT_FLUSH_TIMEOUT = 0.5
"""Seconds that the event of the end gets to be written."""


class UnsupportedLockError(ValueError):
    """A kind of lock is asked for that there is no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionFlags:
    """Whether one of several replicas works, and how they agree upon which."""

    leader_elect: Annotated[
        bool,
        typer.Option("--leader-elect/--no-leader-elect", help="Work only while holding a Lease."),
    ] = True
    leader_elect_lease_duration: Annotated[
        str, typer.Option(help="How long others wait for a leader that is silent.")
    ] = "15s"
    leader_elect_renew_deadline: Annotated[
        str, typer.Option(help="How long a leader goes on without a renewal; then it exits.")
    ] = "10s"
    leader_elect_retry_period: Annotated[str, typer.Option(help="Pause between tries.")] = "2s"
    leader_elect_resource_lock: Annotated[
        str, typer.Option(help="Kind of the lock; there is only leases.")
    ] = "leases"
    leader_elect_resource_name: Annotated[str, typer.Option(help="Name of the Lease.")] = (
        "vc-controller-manager"
    )
    leader_elect_resource_namespace: Annotated[
        str, typer.Option(help="Namespace of the Lease.")
    ] = "volcano-system"
    lock_object_namespace: Annotated[
        str, typer.Option(help="Deprecated: --leader-elect-resource-namespace.")
    ] = ""

    def settings(self) -> "LeaderElectionConfig | None":
        """What to contend for; ``None`` if there is nobody to contend with.

        Raises:
            ValueError: that cannot work; the text names the flag.
        """
        if not self.leader_elect:
            return None
        from ..machinery.leader_election import LeaderElectionConfig

        if self.leader_elect_resource_lock != "leases":
            raise UnsupportedLockError(
                f"--leader-elect-resource-lock={self.leader_elect_resource_lock}: Kubernetes has "
                "no such locks any more; use leases"
            )
        if self.lock_object_namespace:
            log.warning("--lock-object-namespace: use --leader-elect-resource-namespace instead")
        return LeaderElectionConfig(
            name=self.leader_elect_resource_name,
            namespace=self.lock_object_namespace or self.leader_elect_resource_namespace,
            lease_duration=_seconds("lease-duration", self.leader_elect_lease_duration),
            renew_deadline=_seconds("renew-deadline", self.leader_elect_renew_deadline),
            retry_period=_seconds("retry-period", self.leader_elect_retry_period),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerElectionFlags(ElectionFlags):
    """The same for the scheduler."""

    leader_elect_resource_name: Annotated[str, typer.Option(help="Name of the Lease.")] = "volcano"


def _seconds(flag: str, text: str) -> float:
    from ..model.durations import DurationError, parse

    try:
        return parse(text).total_seconds()
    except DurationError as error:
        raise DurationError(f"--leader-elect-{flag}: {error}") from None


class LeaderElectionRunnable(Protocol):
    """A part that can stand by."""

    def run(
        self, *, ready: asyncio.Event | None = None, elected: asyncio.Event | None = None
    ) -> Coroutine[Any, Any, None]:
        """Run until cancelled, without working before *lead* is set."""
        ...


@dataclass(frozen=True, slots=True)
class ElectedRunnable:
    """A part of a process that works only while *elector*, if there is one, leads."""

    runnable: LeaderElectionRunnable
    elector: "LeaderElector | None"

    async def run(self, *, ready: asyncio.Event | None = None) -> None:
        """Run the part until cancelled; *ready* is set when it could take over, or works."""
        lead = None if self.elector is None else self.elector.elected
        await self.runnable.run(ready=ready, elected=lead)


def election_client(
    settings: "LeaderElectionConfig", cluster: ClusterFlags, component: str, *, telemetry: Telemetry
) -> "Client":
    """A client for electors: a pool of its own, with neither limit nor fence.

    To try again is the elector's own business.

    Raises:
        ConfigError: there are no credentials that can be used.
    """
    from ..kube.client.client import Client, ClientOptions

    return Client(
        credentials(cluster.kubeconfig, cluster.master),
        user_agent=f"batholith-{component}/leader-election",
        timeout=settings.request_timeout,
        options=ClientOptions(
            max_attempts=1, max_read_attempts=1, metrics=telemetry.client_metrics
        ),
    )


def fenced_client(
    elector: "LeaderElector | None", cluster: ClusterFlags, component: str, *, telemetry: Telemetry
) -> "Client":
    """A client for the work of *part*, which writes nothing unless *elector*, if any, leads.

    Raises:
        ConfigError: there are no credentials that can be used.
    """
    fence = None if elector is None else elector.check_fence
    return new_client(cluster, component, metrics=telemetry.client_metrics, fence=fence)


@asynccontextmanager
async def leader_election(
    settings: "LeaderElectionConfig | None",
    cluster: ClusterFlags,
    component: str,
    *,
    telemetry: Telemetry,
) -> AsyncIterator["LeaderElector | None"]:
    """Contend for leadership for the length of the block, which the work is in.

    When the Lease is lost the process ends at once, with exit code 1. At the end of the block, when
    the work has ended, the Lease is given back.
    """
    if settings is None:
        yield None
        return
    from ..kube.client.events import EventRecorder
    from ..machinery.clock import BoottimeClock
    from ..machinery.leader_election import LeaderElectionMetrics, LeaderElector

    async with election_client(settings, cluster, component, telemetry=telemetry) as client:
        recorder = EventRecorder(client, component=f"batholith-{component}")
        elector = LeaderElector(
            client,
            settings,
            clock=BoottimeClock(),
            recorder=recorder,
            metrics=LeaderElectionMetrics(telemetry.registry),
        )
        telemetry.health.add_leader_check(elector)
        async with _run_elector(elector, recorder):
            yield elector


@asynccontextmanager
async def _run_elector(elector: "LeaderElector", recorder: "EventRecorder") -> AsyncIterator[None]:
    recording = asyncio.create_task(recorder.run())
    contending = asyncio.create_task(elector.run())
    contending.add_done_callback(_exit_on_lost_lease)
    try:
        yield
    finally:
        contending.remove_done_callback(_exit_on_lost_lease)
        contending.cancel()
        await asyncio.gather(contending, return_exceptions=True)
        await recorder.flush(EVENT_FLUSH_TIMEOUT)
        recording.cancel()
        await asyncio.gather(recording, return_exceptions=True)


def _exit_on_lost_lease(election: "asyncio.Task[None]") -> None:
    """Whatever ended the elector but ourselves: no more work may be done, not even to tidy up."""
    error = None if election.cancelled() else election.exception()
    exit_now(str(error or "leader election has ended by itself"))
