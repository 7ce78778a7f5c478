"""API servers that behaviour tests run on, each test on both; distribution of the tests."""

import gc
import logging
import re
import sys
from collections.abc import Generator, Iterator
from typing import Any

import hypothesis
import pytest
from support.api_servers import (
    EmbeddedServerFactory,
    RealServerFactory,
    ServerFactory,
    real_servers,
)

# The time that an example takes depends on the machine alone.
_PATIENT = hypothesis.settings(
    deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.register_profile("patient", _PATIENT)
hypothesis.settings.register_profile(
    "steady", _PATIENT, derandomize=True, database=None, max_examples=40
)
hypothesis.settings.register_profile("soak", _PATIENT, max_examples=1000)
hypothesis.settings.load_profile("patient")


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServerFactory]:
    """Factory of real servers."""
    with real_servers(tmp_path_factory.mktemp("real")) as started:
        yield started


@pytest.fixture(scope="session", params=["embedded", "real"])
def servers(request: pytest.FixtureRequest) -> ServerFactory:
    """Factory of API servers: each test runs once on each kind."""
    if request.param == "embedded":
        return EmbeddedServerFactory()
    started: ServerFactory = request.getfixturevalue("real")
    return started


def pytest_collection_finish() -> None:
    """Exclude what exists before the first test from garbage collections: it stays."""
    gc.freeze()


@pytest.fixture(autouse=True)
def _logging_restored() -> Iterator[None]:
    """Restore the root logger, which a command in this process may have configured."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    # pytest's own handlers of this phase are in both lists, and pytest removes them.
    root.handlers[:] = handlers
    root.setLevel(level)


# Tests that start processes: left out by `make test-fast`.

_PROCESS_EVENTS = frozenset(
    {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"}
)
_process_starts: list[str] = []


def _on_audit_event(event: str, arguments: tuple[object, ...]) -> None:
    if event in _PROCESS_EVENTS and arguments[:1] != ("uname",):  # by `platform.uname()`
        _process_starts.append(f"{event} {arguments[0] if arguments else ''}")


sys.addaudithook(_on_audit_event)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark the tests that use a real API server."""
    callspec = getattr(item, "callspec", None)
    parameters = {} if callspec is None else callspec.params
    if "real" in getattr(item, "fixturenames", ()) or parameters.get("servers") == "real":
        item.add_marker("process")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail a test that starts a process in a run without such tests (`make test-fast`).

    Elsewhere another test may start what they share, so that the first one would be blamed.
    """
    report = yield
    starts, _process_starts[:] = list(_process_starts), []
    if starts and report.outcome == "passed" and "not process" in item.config.option.markexpr:
        report.outcome = "failed"
        report.longrepr = f"started a process without the marker `process`: {starts[0]}"
    return report


# Distribution over xdist workers (`pytest -n 2`).

_EXCLUSIVE = "realkube/test_chaos_"
"""Tests that run many processes at a time: never two of them concurrently."""

_SLOWEST_FIRST = (
    "cluster/test_recorded_scenarios", _EXCLUSIVE, "realkube/test_manifests",
    "cluster/test_leader_election", "realkube/test_rbac", "cluster/test_recorded_",
    "realkube/test_admission", "cli/test_shutdown", "agent/test_crash", "realkube/", "cluster/",
    "agent/", "api/",
)  # fmt: skip
"""Slow tests, slowest first: the tests that start last determine the end of the run."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Start with the slowest tests on xdist workers."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: _rank(item.nodeid))


def _rank(test: str) -> int:
    return next(
        (rank for rank, path in enumerate(_SLOWEST_FIRST) if path in test), len(_SLOWEST_FIRST)
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Assign whole files to a worker: fixtures of their tests are set up once, in order.

    A file's tests on the embedded server and those on a real one count as two files.
    """
    from xdist.scheduler import LoadScopeScheduling

    config.option.loadscopereorder = False
    scheduler = LoadScopeScheduling(config, log)
    scheduler._split_scope = _scope_of
    return scheduler


def _scope_of(test: str) -> str:
    """Return the scope of tests that run on one worker with this test."""
    file, _, name = test.partition("::")
    server = re.search(r"\[(embedded|real)\b", name)
    return _EXCLUSIVE if _EXCLUSIVE in file else f"{file} {server[1] if server else ''}"
