"""Leader election of a process: flags, elected components, and exit on a lost Lease."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from ..kube.supervision import cancel_and_wait
from ..machinery.lifecycle import LeaderElectionRunnable
from .flag_groups import ClusterFlags
from .manager import Telemetry, credentials, new_client
from .process import exit_now

if TYPE_CHECKING:
    from ..kube.client.client import Client
    from ..kube.client.events import EventRecorder
    from ..machinery.leader_election import LeaderElectionConfig, LeaderElector

log = logging.getLogger(__name__)

EVENT_FLUSH_TIMEOUT = 0.5
"""Seconds for which the last event may be written before the process exits."""


class UnsupportedLockError(ValueError):
    """The requested kind of lock no longer exists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionFlags:
    """Leader election among replicas."""

    leader_elect: Annotated[
        bool,
        typer.Option("--leader-elect/--no-leader-elect", help="Run only while holding the Lease."),
    ] = True
    leader_elect_lease_duration: Annotated[
        str, typer.Option(help="Duration candidates wait before acquiring an unrenewed lease.")
    ] = "15s"
    leader_elect_renew_deadline: Annotated[
        str, typer.Option(help="Duration after which a leader that cannot renew its lease exits.")
    ] = "10s"
    leader_elect_retry_period: Annotated[
        str, typer.Option(help="Interval between attempts to acquire or renew.")
    ] = "2s"
    leader_elect_resource_lock: Annotated[
        str, typer.Option(help="Kind of the lock; only leases is supported.")
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
        """Return the configuration; ``None`` if leader election is disabled.

        Raises:
            ValueError: a flag is invalid; the text names it.
        """
        if not self.leader_elect:
            return None
        from ..machinery.leader_election import LeaderElectionConfig

        if self.leader_elect_resource_lock != "leases":
            raise UnsupportedLockError(
                f"--leader-elect-resource-lock={self.leader_elect_resource_lock}: not "
                "supported by Kubernetes any more; use leases"
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
    """Leader election flags of the scheduler."""

    leader_elect_resource_name: Annotated[str, typer.Option(help="Name of the Lease.")] = "volcano"


def _seconds(flag: str, text: str) -> float:
    from ..model.durations import DurationError, parse

    try:
        return parse(text).total_seconds()
    except DurationError as error:
        raise DurationError(f"--leader-elect-{flag}: {error}") from None


@dataclass(frozen=True, slots=True)
class ElectedRunnable:
    """Runs *runnable* so that it works only while *elector*, if any, leads."""

    runnable: LeaderElectionRunnable
    elector: "LeaderElector | None"

    async def run(self, *, ready: asyncio.Event | None = None) -> None:
        """Run until cancelled; set *ready* once it works or is a standby."""
        elected = None if self.elector is None else self.elector.elected
        await self.runnable.run(ready=ready, elected=elected)


def election_client(
    settings: "LeaderElectionConfig", cluster: ClusterFlags, component: str, *, telemetry: Telemetry
) -> "Client":
    """Create a client for electors: separate connections, no rate limit and no fence.

    It does not retry, since the elector does.

    Raises:
        ConfigError: no valid credentials were found.
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
    """Create a client for *component* that writes only while *elector*, if any, leads.

    Raises:
        ConfigError: no valid credentials were found.
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
    """Run for election within the block.

    If the Lease is lost, the process exits immediately with code 1. On leaving the block, after the
    work has stopped, the Lease is released.
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
        async with run_elector(elector, recorder):
            yield elector


@asynccontextmanager
async def run_elector(elector: "LeaderElector", recorder: "EventRecorder") -> AsyncIterator[None]:
    """Run both for the length of the block; the process exits if the Lease is lost."""
    recording = asyncio.create_task(recorder.run())
    election = asyncio.create_task(elector.run())
    election.add_done_callback(_exit_on_lost_lease)
    try:
        yield
    finally:
        election.remove_done_callback(_exit_on_lost_lease)
        await cancel_and_wait(election)
        await recorder.flush(EVENT_FLUSH_TIMEOUT)
        await cancel_and_wait(recording)


def _exit_on_lost_lease(election: "asyncio.Task[None]") -> None:
    """Exit the process: without the Lease no more work is allowed, not even cleanup."""
    error = None if election.cancelled() else election.exception()
    exit_now(str(error or "leader election exited unexpectedly"))
