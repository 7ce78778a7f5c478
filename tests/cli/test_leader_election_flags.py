"""Leader election flags."""

import asyncio
from typing import cast

import pytest
from typer.testing import CliRunner

from batholith.cli import leader_election
from batholith.cli.leader_election import (
    ElectionFlags,
    SchedulerElectionFlags,
    UnsupportedLockError,
)
from batholith.cli.main import app
from batholith.kube.client.client import Client
from batholith.kube.client.events import EventRecorder
from batholith.kube.timing import Timing
from batholith.machinery.leader_election import (
    LeaderElectionConfigError,
    LeaderElector,
    LeadershipLostError,
)
from batholith.machinery.testing import run_ready_tasks
from batholith.model.durations import DurationError


def test_defaults_are_volcanos() -> None:
    settings = ElectionFlags().settings()
    assert settings is not None
    times = (settings.lease_duration, settings.renew_deadline, settings.retry_period)
    assert times == (15, 10, 2)
    assert (settings.namespace, settings.name) == ("volcano-system", "vc-controller-manager")
    scheduler = SchedulerElectionFlags().settings()
    assert scheduler is not None
    assert (scheduler.namespace, scheduler.name) == ("volcano-system", "volcano")


def test_other_flags_are_ignored_without_leader_election() -> None:
    assert ElectionFlags(leader_elect=False, leader_elect_retry_period="soon").settings() is None


def test_durations_are_in_gos_syntax() -> None:
    settings = ElectionFlags(
        leader_elect_lease_duration="1m30s",
        leader_elect_renew_deadline="1m",
        leader_elect_retry_period="500ms",
    ).settings()
    assert settings is not None
    times = (settings.lease_duration, settings.renew_deadline, settings.retry_period)
    assert times == (90, 60, 0.5)


def test_errors_of_invalid_durations_name_the_flag() -> None:
    with pytest.raises(DurationError, match=r"--leader-elect-retry-period: .*missing unit"):
        ElectionFlags(leader_elect_retry_period="2").settings()


def test_errors_of_inconsistent_durations_name_the_flags() -> None:
    with pytest.raises(
        LeaderElectionConfigError, match=r"--leader-elect-lease-duration .5s. must be"
    ):
        ElectionFlags(leader_elect_lease_duration="5s").settings()


@pytest.mark.parametrize("lock", ["configmaps", "endpoints", "endpointsleases", ""])
def test_unsupported_locks_are_rejected(lock: str) -> None:
    with pytest.raises(UnsupportedLockError, match="use leases"):
        ElectionFlags(leader_elect_resource_lock=lock).settings()


def test_the_deprecated_namespace_flag_wins_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings = ElectionFlags(lock_object_namespace="old").settings()
    assert settings is not None
    assert settings.namespace == "old"
    assert "use --leader-elect-resource-namespace instead" in caplog.text


@pytest.mark.parametrize("command", ["controllers", "scheduler"])
def test_invalid_flags_are_reported_in_one_line(command: str) -> None:
    arguments = [command, "--leader-elect-resource-lock=configmaps"]
    outcome = CliRunner().invoke(app, arguments)
    assert outcome.exit_code == 1
    assert "batholith: --leader-elect-resource-lock=configmaps: not supported" in outcome.output


class FakeElector:
    """An elector that exits unexpectedly."""

    def __init__(self, error: BaseException | None) -> None:
        self._error = error

    async def run(self) -> None:
        if self._error is not None:
            raise self._error


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (LeadershipLostError("lost the Lease"), "lost the Lease"),
        (RuntimeError("a mistake"), "a mistake"),
        (asyncio.CancelledError(), "leader election exited unexpectedly"),
        (None, "leader election exited unexpectedly"),
    ],
)
async def test_an_unexpected_exit_of_the_elector_ends_the_process(
    error: BaseException | None, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = list[str]()
    monkeypatch.setattr(leader_election, "exit_now", ended.append)
    recorder = EventRecorder(cast(Client, UnconnectedClient()), component="test")
    async with leader_election.run_elector(cast(LeaderElector, FakeElector(error)), recorder):
        await run_ready_tasks()
        assert ended == [why]


async def test_a_cancelled_election_does_not_end_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Patient:
        async def run(self) -> None:
            await asyncio.Event().wait()

    ended = list[str]()
    monkeypatch.setattr(leader_election, "exit_now", ended.append)
    recorder = EventRecorder(cast(Client, UnconnectedClient()), component="test")
    async with leader_election.run_elector(cast(LeaderElector, Patient()), recorder):
        await run_ready_tasks()
    await run_ready_tasks()
    assert ended == []


class UnconnectedClient:
    """The part of a client that an idle recorder uses."""

    timing = Timing()

    def background(self) -> "UnconnectedClient":
        return self
