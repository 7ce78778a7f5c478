"""Small histories that a random machine found, told again step by step."""

from collections.abc import Iterator
from typing import Any

import pytest
from support_jobs import task
from support_machine import Life

from batholith.model.names import PODGROUPS


@pytest.fixture
def life() -> Iterator[Life]:
    made = Life()
    try:
        yield made
        assert made.audit.broken == []
    finally:
        made.close()


def submit(life: Life, **spec: Any) -> None:
    life.submit({"minAvailable": 2, "maxRetry": 3, "queue": "q", "tasks": [task()], **spec})


def test_a_podgroup_that_goes_before_its_creation_is_answered_is_made_again(life: Life) -> None:
    gone: list[str] = []

    def hear(prefix: str, change: str, new: Any, old: Any) -> None:
        life.audit.hear(prefix, change, new, old)
        if prefix == PODGROUPS.path() and not gone:
            gone.append(new["metadata"]["name"])
            life.loop.call_soon(life.api.take_away, PODGROUPS, gone[0])

    life.api.told, life.api.lag = hear, 10
    submit(life)
    life.do(life.rest())
    assert gone
    assert life.group() is not None
