"""A sync waits until the informers have the controller's own writes."""

import pytest

from batholith.machinery.consistency import ConsistencyStore
from batholith.machinery.expectations import TTL
from batholith.machinery.testing import FakeClock
from batholith.model.names import JOBS, PODS, SERVICES


class Versions:
    def __init__(self) -> None:
        self.pods = self.jobs = "100"
        self.clock = FakeClock()
        self.store = ConsistencyStore(
            self.clock, {PODS: lambda: self.pods, JOBS: lambda: self.jobs}
        )


@pytest.fixture
def versions() -> Versions:
    return Versions()


def test_key_is_stale_until_every_store_has_its_writes(versions: Versions) -> None:
    store = versions.store
    store.wrote("web", PODS, "107")
    store.wrote("web", PODS, "105")
    store.wrote("web", JOBS, "110")
    assert store.stale_resources("other") == ()
    versions.pods, versions.jobs = "106", "110"
    assert store.stale_resources("web") == (PODS,)
    versions.pods = "107"
    assert store.stale_resources("web") == ()
    assert len(store) == 0


def test_versions_are_compared_as_numbers(versions: Versions) -> None:
    versions.store.wrote("web", PODS, "1000")
    versions.pods = "999"
    assert versions.store.stale_resources("web") == (PODS,)


def test_store_without_version_is_stale(versions: Versions) -> None:
    versions.store.wrote("web", PODS, "50")
    versions.pods = ""
    assert versions.store.stale_resources("web") == (PODS,)


def test_minimum_expires(versions: Versions) -> None:
    """A server that was restored from a backup does not reach it."""
    versions.store.wrote("web", PODS, "200")
    versions.clock.tick(TTL)
    assert versions.store.stale_resources("web") == (PODS,)
    versions.clock.tick(1)
    assert versions.store.stale_resources("web") == ()


def test_version_that_is_no_number_is_not_recorded(versions: Versions) -> None:
    versions.store.wrote("web", PODS, "")
    assert len(versions.store) == 0


def test_resource_that_is_not_watched_is_an_error(versions: Versions) -> None:
    with pytest.raises(KeyError):
        versions.store.wrote("web", SERVICES, "1")


def test_deleted_key_has_no_minimum(versions: Versions) -> None:
    versions.store.wrote("web", PODS, "200")
    versions.store.delete("web")
    assert versions.store.stale_resources("web") == ()
