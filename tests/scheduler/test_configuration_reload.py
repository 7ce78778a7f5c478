"""Reloading of the scheduler configuration from its file or a mounted ConfigMap."""

from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from support.mounted_configmap import MountedConfigMap

from batholith.machinery.testing import FakeClock
from batholith.scheduler.conf import DEFAULT, Conf, load
from batholith.scheduler.conf_reload import POLL_INTERVAL, ConfReloader
from batholith.scheduler.metrics import ReloadMetrics

OTHER = 'actions: "allocate"\n'


class Reloads:
    """A reloader of a mounted file, and what it has done."""

    def __init__(self, directory: Path) -> None:
        self.clock, self.registry = FakeClock(), CollectorRegistry()
        self.mounted = MountedConfigMap(directory, DEFAULT)
        self.used: list[Conf] = []
        self.problems: list[str] = []
        self.reloader = ConfReloader(
            self.mounted.file,
            loaded=DEFAULT,
            load=load,
            use=self.used.append,
            report=self.problems.append,
            clock=self.clock,
            metrics=ReloadMetrics(self.registry, clock=self.clock),
        )

    def count(self, result: str) -> float | None:
        name = "batholith_scheduler_config_reloads_total"
        return self.registry.get_sample_value(name, {"result": result})

    def is_current(self) -> float | None:
        return self.registry.get_sample_value("batholith_scheduler_config_last_reload_successful")

    def last_success(self) -> float | None:
        return self.registry.get_sample_value(
            "batholith_scheduler_config_last_success_timestamp_seconds"
        )


@pytest.fixture
def reloads(tmp_path: Path) -> Reloads:
    return Reloads(tmp_path)


def test_the_file_is_read_often_enough_for_two_seconds() -> None:
    assert POLL_INTERVAL <= 1


async def test_a_swapped_configmap_is_used_once(reloads: Reloads) -> None:
    await reloads.reloader.poll()
    assert not reloads.used
    started = reloads.last_success()
    await reloads.clock.advance(5)
    reloads.mounted.replace(OTHER)
    await reloads.reloader.poll()
    await reloads.reloader.poll()
    assert [[name for name, _ in each.actions] for each in reloads.used] == [["allocate"]]
    assert (reloads.count("success"), reloads.count("error")) == (1, 0)
    assert reloads.last_success() == (started or 0) + 5


@pytest.mark.parametrize(
    "spoil",
    [
        lambda mounted: mounted.replace("actions: dance"),
        lambda mounted: mounted.replace(""),
        MountedConfigMap.remove,
    ],
    ids=["invalid", "empty", "removed"],
)
async def test_an_invalid_configuration_keeps_the_previous_one_and_is_reported_once(
    reloads: Reloads, spoil: Callable[[MountedConfigMap], None]
) -> None:
    started = reloads.last_success()
    spoil(reloads.mounted)
    await reloads.clock.advance(5)
    await reloads.reloader.poll()
    await reloads.reloader.poll()
    assert not reloads.used and len(reloads.problems) == 1
    assert (reloads.count("success"), reloads.count("error")) == (0, 1)
    assert reloads.last_success() == started
    assert reloads.is_current() == 0


async def test_a_configuration_is_used_after_it_was_repaired(reloads: Reloads) -> None:
    for text in ("actions: dance", OTHER, "actions: dance", DEFAULT):
        reloads.mounted.replace(text)
        await reloads.reloader.poll()
        assert reloads.is_current() == (text in (OTHER, DEFAULT))
    assert len(reloads.used) == 2 and len(reloads.problems) == 2


async def test_a_file_that_is_back_is_used_again(reloads: Reloads) -> None:
    for _ in range(2):
        reloads.mounted.remove()
        await reloads.reloader.poll()
        reloads.mounted.file.symlink_to("..data/volcano-scheduler.conf")
        await reloads.reloader.poll()
    assert len(reloads.used) == 2 and len(reloads.problems) == 2
