"""Past usage and budgets of queues, as the scheduler has kept them."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.pages import pages_client

from batholith.api.past_usage import budget_use_of, past_usage_of
from batholith.machinery.testing import FakeClock
from batholith.model.budgets import budget_of
from batholith.model.meta import ObjectMeta
from batholith.model.names import (
    BUDGET,
    BUDGET_POLICY,
    BUDGET_WINDOW,
    CONFIGMAPS,
    QUEUES,
)
from batholith.model.past_usage import CONFIGMAP, KEY, KeptUsage, PastUse, PastWindow
from batholith.model.queue import Queue
from batholith.wire.queues import BudgetAmounts

NOW = datetime(2026, 1, 7, 12, tzinfo=UTC)
ANNOTATIONS = {BUDGET: "cpu=1000,memory=4Gi", BUDGET_WINDOW: "24h", BUDGET_POLICY: "soft"}
HOUR = 3600.0


def kept(*windows: PastWindow) -> KeptUsage:
    return KeptUsage(
        at=NOW.timestamp(),
        resources=["cpu", "memory", "pods"],
        units=[1000, 1, 1],
        half_life=604800.0,
        usage=[
            PastUse("team", "", [1500 * HOUR, 2**31 * HOUR, 5 * HOUR]),
            PastUse("team", "ann", [900 * HOUR, 0.0, 1 * HOUR]),
        ],
        windows=list(windows),
    )


def queue(**annotations: str) -> Queue:
    return Queue(metadata=ObjectMeta(name="team", annotations=annotations or ANNOTATIONS))


def test_past_usage_is_in_units_times_hours() -> None:
    found = past_usage_of(kept(), "team")
    assert found is not None
    assert found.resource_hours == {"cpu": 1.5, "memory": 2**31}
    assert (found.half_life_seconds, found.at) == (604800.0, NOW)
    other = past_usage_of(kept(), "other")
    assert other is not None
    assert other.resource_hours == {}


@pytest.mark.parametrize("nothing", [None, KeptUsage(at=1.0), KeptUsage(at=1.0, resources=["cpu"])])
def test_without_recorded_usage_there_is_none_and_no_budget(nothing: KeptUsage | None) -> None:
    assert past_usage_of(nothing, "team") is None
    assert budget_use_of(nothing, queue(), NOW) is None


def test_a_budget_has_what_was_used_in_the_current_window() -> None:
    budget = budget_of(ANNOTATIONS)
    assert budget is not None
    window = budget.window_at(NOW.timestamp())
    before = PastWindow("team", window.start - 86400, window.start, window.start, [9e9, 0.0, 0.0])
    current = PastWindow("team", *window, NOW.timestamp(), [2500 * HOUR, 2**30 * HOUR, 1.0])
    other = PastWindow("other", *window, NOW.timestamp(), [9e9, 0.0, 0.0])
    found = budget_use_of(kept(before, other, current), queue(), NOW)
    assert found is not None
    assert found.policy == "soft"
    assert (found.starts_at, found.ends_at) == (
        datetime(2026, 1, 7, tzinfo=UTC),
        datetime(2026, 1, 8, tzinfo=UTC),
    )
    assert found.resource_hours == {
        "cpu": BudgetAmounts(used=2.5, limit=1000.0),
        "memory": BudgetAmounts(used=2.0**30, limit=4 * 2.0**30),
    }
    unused = budget_use_of(kept(before, other), queue(), NOW)
    assert unused is not None
    assert unused.resource_hours["cpu"].used == 0.0
    assert budget_use_of(kept(), queue(other="x"), NOW) is None


@pytest.mark.cluster
async def test_usage_and_pages_have_what_the_scheduler_has_written(tmp_path: Path) -> None:
    clock = FakeClock()
    async with pages_client(tmp_path, clock=clock) as pages:
        await pages.sign_in()
        metadata: dict[str, Any] = {"name": "team", "annotations": ANNOTATIONS}
        await pages.client.create(QUEUES, {"metadata": metadata, "spec": {"weight": 1}})
        body = {
            "metadata": {"name": CONFIGMAP},
            "data": {KEY: json.dumps({**_builtins(kept()), "at": clock.now().timestamp()})},
        }
        await pages.client.patch(CONFIGMAPS, CONFIGMAP, body, namespace="volcano-system")
        status, text = await pages.get("/queues/team")
        assert status == 200
        assert "<dt>cpu</dt><dd>1.5 hours</dd>" in text
        assert "jobs are last" in text
        assert '<td class="number">1 k</td>' in text
        assert "7d ago" in text
        assert "ann" not in text.partition("Past usage")[2].partition("Budget")[0]


def _builtins(usage: KeptUsage) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(usage)
    return found
