"""Flags of the history of ``batholith api``."""

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .flag_groups import FlagError, NotifyAllow
from .leader_election import ElectionFlags

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from ..api.history.notifications import NotificationSettings
    from ..api.history.tasks import HistorySettings


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryElectionFlags(ElectionFlags):
    """Leader election flags of the recorder."""

    leader_elect: Annotated[
        bool,
        typer.Option(
            "--leader-elect/--no-leader-elect",
            help="Record only while holding the Lease; requests are always served.",
        ),
    ] = True
    leader_elect_resource_name: Annotated[str, typer.Option(help="Name of the Lease.")] = (
        "batholith-history"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryFlags:
    """Recording and retention of the history."""

    record_history: Annotated[
        bool,
        typer.Option(
            "--record-history",
            help="Record jobs, their phases and their usage. Requires permission to read pods and "
            "to patch jobs.",
        ),
    ] = False
    history_max_age: Annotated[
        str,
        typer.Option(help="Age at which deleted jobs, commands and hourly usage are removed."),
    ] = "2160h"
    history_max_rows: Annotated[
        int, typer.Option(min=0, help="Maximum number of deleted jobs, and of commands.")
    ] = 1_000_000
    notify_key_file: Annotated[
        Path | None,
        typer.Option(
            help="Send the notifications of jobs, signed with the key in this file, of at least 16 "
            "bytes; requires --record-history."
        ),
    ] = None
    notify_allow: NotifyAllow = None

    def settings(self, registry: "CollectorRegistry") -> "HistorySettings":
        """Return the settings, without an election.

        Raises:
            FlagError: the age is not a positive duration, or flags contradict each other.
            ValueError: the key cannot be used.
        """
        from ..api.history.metrics import RecorderMetrics
        from ..api.history.tasks import HistorySettings
        from ..store.retention import RetentionSettings

        retention = RetentionSettings(max_age=self._max_age(), max_rows=self.history_max_rows)
        metrics = RecorderMetrics(registry)
        return HistorySettings(
            record=self.record_history,
            retention=retention,
            metrics=metrics,
            notifications=self._notifications(registry),
        )

    def _notifications(self, registry: "CollectorRegistry") -> "NotificationSettings | None":
        from ..api.history.metrics import NotificationMetrics
        from ..api.history.notifications import NotificationSettings
        from ..model.notification_destinations import Destinations

        if self.notify_key_file is None:
            if self.notify_allow:
                raise FlagError("--notify-allow requires --notify-key-file")
            return None
        if not self.record_history:
            raise FlagError("--notify-key-file requires --record-history")
        try:
            destinations = Destinations.parse(self.notify_allow or ())
        except ValueError as error:
            raise FlagError(f"--notify-allow: {error}") from None
        found = NotificationSettings(
            key_file=self.notify_key_file,
            destinations=destinations,
            metrics=NotificationMetrics(registry),
        )
        found.key()
        return found

    def _max_age(self) -> timedelta:
        from ..model.durations import DurationError, parse

        try:
            age = parse(self.history_max_age)
        except DurationError as error:
            raise FlagError(f"--history-max-age: {error}") from None
        if age <= timedelta():
            raise FlagError(f"--history-max-age={self.history_max_age}: must be more than 0")
        return age
