"""Small histories that a random machine found, told again step by step."""

from typing import Any

from support_jobs import task
from support_machine import Life

from batholith.model.names import PODGROUPS, PODS


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


def test_a_podgroup_that_no_cache_ever_showed_is_known_to_be_gone(life: Life) -> None:
    life.do(life.start())
    life.do(life.idle())
    life.api.hold(PODGROUPS)
    submit(life)
    life.do(life.pass_time(2))
    assert life.group() is not None
    life.command("RestartJob")
    life.do(life.pass_time(2))
    assert (life.phase, life.group()) == ("Restarting", None)
    life.api.lose()
    life.do(life.rest())
    assert life.phase == "Pending"
    assert life.group() is not None


def test_a_pod_that_no_cache_ever_showed_is_known_to_be_gone(life: Life) -> None:
    submit(life)
    life.do(life.rest())
    life.api.hold(PODS)
    life.admit()
    life.do(life.pass_time(2))
    life.evict("j-t-1", force=True)
    life.api.lose()
    life.do(life.rest())
    assert life.named(PODS).keys() == {"j-t-0", "j-t-1"}
