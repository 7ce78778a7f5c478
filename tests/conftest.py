"""API server fixtures for tests of behaviour, and the distribution of tests to processes."""

import logging
import re
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
from support.api_servers import (
    EmbeddedServerFactory,
    RealServerFactory,
    ServerFactory,
    real_servers,
)

# The time to generate or run an example depends on the load of the machine.
_PATIENT = hypothesis.settings(
    deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.register_profile("patient", _PATIENT)
hypothesis.settings.register_profile("steady", _PATIENT, derandomize=True, database=None)
hypothesis.settings.load_profile("patient")


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServerFactory]:
    """Factory for tests that need a real API server."""
    with real_servers(tmp_path_factory.mktemp("real")) as started:
        yield started


@pytest.fixture(scope="session", params=["embedded", "real"])
def servers(request: pytest.FixtureRequest) -> ServerFactory:
    """Factory of API servers; a test that uses it runs on each kind."""
    if request.param == "embedded":
        return EmbeddedServerFactory()
    started: ServerFactory = request.getfixturevalue("real")
    return started


@pytest.fixture(autouse=True)
def _logging_restored() -> Iterator[None]:
    """Restore the root logger, which a command in this process may have configured."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    # pytest's own handlers of this phase are in both lists, and pytest removes them.
    root.handlers[:] = handlers
    root.setLevel(level)


# Distribution to several processes (`pytest -n 2`).

_EXCLUSIVE = "realkube/test_chaos_"
"""Tests that run many processes; two of them must not run concurrently."""

_SLOWEST_FIRST = (_EXCLUSIVE, "cluster/test_recorded_", "realkube/", "cluster/", "agent/")
"""Slow tests, slowest first: the last one to start determines the duration of the run."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Start with the slowest tests if several processes run the tests."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: _rank(item.nodeid))


def _rank(test: str) -> int:
    return next(
        (rank for rank, prefix in enumerate(_SLOWEST_FIRST) if prefix in test), len(_SLOWEST_FIRST)
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Assign whole files to a process, so that module fixtures are created once.

    A file's tests on the embedded server and those on a real one count as two files.
    """
    from xdist.scheduler import LoadScopeScheduling

    config.option.loadscopereorder = False
    scheduler = LoadScopeScheduling(config, log)
    scheduler._split_scope = _scope_of
    return scheduler


def _scope_of(test: str) -> str:
    """Return the scope that runs in the same process as this test."""
    file, _, name = test.partition("::")
    server = re.search(r"\[(embedded|real)\b", name)
    return _EXCLUSIVE if _EXCLUSIVE in file else f"{file} {server[1] if server else ''}"
