"""The servers that tests of behaviour run on, each test on both; and how the suite is run."""

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

# How long an example takes to find or to run tells of the machine alone.
_PATIENT = hypothesis.settings(
    deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.register_profile("patient", _PATIENT)
hypothesis.settings.register_profile("steady", _PATIENT, derandomize=True, database=None)
hypothesis.settings.load_profile("patient")


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServerFactory]:
    """Where a test that needs a real server gets it from."""
    with real_servers(tmp_path_factory.mktemp("real")) as started:
        yield started


@pytest.fixture(scope="session", params=["embedded", "real"])
def servers(request: pytest.FixtureRequest) -> ServerFactory:
    """Where a test gets its API server from: it runs once on each."""
    if request.param == "embedded":
        return EmbeddedServerFactory()
    started: ServerFactory = request.getfixturevalue("real")
    return started


@pytest.fixture(autouse=True)
def _logging_restored() -> Iterator[None]:
    """Undo what a command that ran in this process did to the root logger."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    # pytest's own handlers of this phase are in both lists, and pytest removes them.
    root.handlers[:] = handlers
    root.setLevel(level)


# Several processes that share the tests (`pytest -n 2`).

_EXCLUSIVE = "realkube/test_chaos_"
"""Tests in which many processes are at work at a time: not two of these beside one another."""

_SLOWEST_FIRST = (_EXCLUSIVE, "cluster/test_recorded_", "realkube/", "cluster/", "agent/")
"""What takes long, longest first: what is begun last decides when all is over."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with what takes longest, where others can do the rest meanwhile."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: _rank(item.nodeid))


def _rank(test: str) -> int:
    return next(
        (rank for rank, part in enumerate(_SLOWEST_FIRST) if part in test), len(_SLOWEST_FIRST)
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Give whole files to a process: what their tests share is made once, in their order.

    A file's tests on the embedded server and those on a real one count as two files.
    """
    from xdist.scheduler import LoadScopeScheduling

    config.option.loadscopereorder = False
    scheduler = LoadScopeScheduling(config, log)
    scheduler._split_scope = _scope_of
    return scheduler


def _scope_of(test: str) -> str:
    """A name for what goes to one process with this test."""
    file, _, name = test.partition("::")
    server = re.search(r"\[(embedded|real)\b", name)
    return _EXCLUSIVE if _EXCLUSIVE in file else f"{file} {server[1] if server else ''}"
