"""Flags of the history of ``batholith api``."""

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from .flag_groups import FlagError
from .leader_election import ElectionFlags

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

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

    def settings(self, registry: "CollectorRegistry") -> "HistorySettings":
        """Return the settings, without an election.

        Raises:
            FlagError: the age is not a positive duration.
        """
        from ..api.history.metrics import RecorderMetrics
        from ..api.history.tasks import HistorySettings
        from ..store.retention import RetentionSettings

        retention = RetentionSettings(max_age=self._max_age(), max_rows=self.history_max_rows)
        metrics = RecorderMetrics(registry)
        return HistorySettings(record=self.record_history, retention=retention, metrics=metrics)

    def _max_age(self) -> timedelta:
        from ..model.durations import DurationError, parse

        try:
            age = parse(self.history_max_age)
        except DurationError as error:
            raise FlagError(f"--history-max-age: {error}") from None
        if age <= timedelta():
            raise FlagError(f"--history-max-age={self.history_max_age}: must be more than 0")
        return age
