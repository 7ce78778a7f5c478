"""API servers that behaviour tests run on, each test on both; distribution of the tests."""

import functools
import gc
import logging
import os
import re
import sys
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import asynccontextmanager
from types import ModuleType
from typing import Any

import hypothesis
import pytest
import typer.main
import typer.testing
from support.api_servers import (
    EmbeddedServerFactory,
    RealServerFactory,
    ServerFactory,
    real_servers,
)
from support.combinations import covering
from support.realkube import RealKube

from batholith.local.apiserver import server as apiserver
from batholith.local.apiserver.app import COMPONENT_DENIED, App

# The time that an example takes depends on the machine alone.
_PATIENT = hypothesis.settings(
    deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.register_profile("patient", _PATIENT)
hypothesis.settings.register_profile(
    "steady", _PATIENT, derandomize=True, database=None, max_examples=25
)
hypothesis.settings.register_profile(
    "fast", _PATIENT, derandomize=True, database=None, max_examples=10
)
hypothesis.settings.register_profile("soak", _PATIENT, max_examples=1000)
hypothesis.settings.load_profile("patient")

# Programs in Go, e.g. kube-apiserver, kubectl and helm: fewer garbage collections, a fifth of their
# processor time.
os.environ.setdefault("GOGC", "400")
os.environ.setdefault("GOMEMLIMIT", "3GiB")

# The runner of typer builds all commands of a program for each invocation: most of its time.
vars(typer.testing)["_get_command"] = functools.cache(typer.main.get_command)

# Until the tests are collected, nothing is garbage, and looking for it is a quarter of the time.
gc.disable()


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServerFactory]:
    """Factory of real servers."""
    with real_servers(tmp_path_factory.mktemp("real")) as started:
        RealKube.shared.append(started.kube)
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
    gc.enable()


@pytest.fixture(autouse=True)
def _logging_restored() -> Iterator[None]:
    """Restore the root logger, which a command in this process may have configured."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    # pytest's own handlers of this phase are in both lists, and pytest removes them.
    root.handlers[:] = handlers
    root.setLevel(level)


class _DeniedRequests(logging.Handler):
    """Collects the requests of components that embedded API servers denied."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg == COMPONENT_DENIED:
            self.found.append(vars(record)["error"])


@pytest.fixture(autouse=True)
def _no_component_is_denied(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test in which a component lacked a right, unless it has the marker ``denied``."""
    logger, handler = logging.getLogger(App.__module__), _DeniedRequests()
    logger.addHandler(handler)
    yield
    logger.removeHandler(handler)
    if request.node.get_closest_marker("denied") is None:
        assert handler.found == []


# Tests that start processes or API servers: left out by `make test-fast`.

_PROCESS_EVENTS = frozenset(
    {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"}
)
_SERVER_MODULES = frozenset({
    "batholith.testing.apiserver", "batholith.testing.blocking", "batholith.testing.cluster",
    "support.admission_server", "support.agent_cluster", "support.api_servers",
    "support.controller_api", "support.embedded_apiserver", "support.job_pods", "support.pages",
    "support.rest", "support.rest_jobs", "support.scheduled_gangs", "support.sdk",
    "support.training_harness", "support.watched_pods",
})  # fmt: skip
"""Modules whose functions and classes start an API server in the process of the test."""

_SERVER_FIXTURES = frozenset({"kubectl", "rest", "server_of_pages", "servers", "shared"})
"""Fixtures of `conftest.py` files that start one."""

_starts: dict[str, list[str]] = {"process": [], "cluster": []}
"""What the current test has started, by the marker that it needs for it."""


def _on_audit_event(event: str, arguments: tuple[object, ...]) -> None:
    if event in _PROCESS_EVENTS and arguments[:1] != ("uname",):  # by `platform.uname()`
        _starts["process"].append(f"a process ({event} {arguments[0] if arguments else ''})")


sys.addaudithook(_on_audit_event)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Observe the starts of embedded API servers in a run without them (`make test-fast`)."""
    if "not cluster" in session.config.option.markexpr:
        running = apiserver.running

        @asynccontextmanager
        async def observed(config: apiserver.Config) -> AsyncIterator[App]:
            _starts["cluster"].append("an API server")
            async with running(config) as app:
                yield app

        apiserver.running = observed


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark the tests that use an API server."""
    callspec = getattr(item, "callspec", None)
    parameters = {} if callspec is None else callspec.params
    fixtures = getattr(item, "fixturenames", ())
    if "real" in fixtures or parameters.get("servers") == "real":
        assert _REAL.search(item.nodeid), f"{item.nodeid} must be one of _REAL"
        item.add_marker("process")
    module = getattr(item, "module", None)
    if not _SERVER_FIXTURES.isdisjoint(fixtures) or _imports_server(module):
        item.add_marker("cluster")


@functools.cache
def _imports_server(module: ModuleType | None) -> bool:
    """Return whether a test module imports what starts an API server."""
    content = {} if module is None else vars(module)
    return any(getattr(each, "__module__", "") in _SERVER_MODULES for each in content.values())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail a test that starts what the run leaves out with such tests (`make test-fast`).

    Elsewhere another test may start what they share, so that the first one would be blamed.
    """
    report = yield
    for marker, starts in _starts.items():
        if starts and report.outcome == "passed" and f"not {marker}" in item.config.option.markexpr:
            report.outcome = "failed"
            report.longrepr = f"started {starts[0]} without the marker `{marker}`"
        starts.clear()
    return report


# Variants that `make soak` runs.


@pytest.hookimpl(tryfirst=True, specname="pytest_collection_modifyitems")
def pytest_mark_repeated_combinations(items: list[pytest.Item]) -> None:
    """Mark variants that have no further combination of those that `combinations` demands."""
    variants: dict[object, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("combinations") and hasattr(item, "callspec"):
            variants.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for same in variants.values():
        marker = same[0].get_closest_marker("combinations")
        assert marker is not None
        chosen = covering([_values(item) for item in same], marker.args[0])
        for index in set(range(len(same))) - chosen:
            same[index].add_marker("soak")


def _values(item: pytest.Item) -> dict[str, str]:
    """Return the values of a variant: pytest's indices of them count on from one to the next."""
    return {name: repr(value) for name, value in vars(item)["callspec"].params.items()}


# Distribution over xdist workers (`pytest -n 2`).

_EXCLUSIVE = "realkube/test_chaos_"
"""Tests that run many processes at a time: never two of them concurrently."""

_SLOWEST_FIRST = (
    "realkube/test_manifests", "realkube/test_rbac", "cluster/test_recorded_scenarios", _EXCLUSIVE,
    "cluster/test_leader_election", "cluster/test_recorded_", "realkube/test_admission",
    "cli/test_shutdown", "agent/test_crash", "cli/test_command_line_docs",
    "machinery/test_shard_leases", "realkube/", "cluster/", "testing/", "cli/", "pages/", "agent/",
    "api/",
)  # fmt: skip
"""Slow tests, slowest first: the tests that start last determine the end of the run."""


_REAL = re.compile(
    r"\[real\b|/realkube/test_(admission|api_types|authorization|batch_writes|crds|field_ownership"
    r"|openapi|pod_security|proxies|quotas|rule_costs|webhooks)\.py"
    r"|/apiserver/test_(conformance|conformance_of_content|conformance_of_kinds"
    r"|conformance_of_storage|conformance_of_validation|every_kind|flow_control|pod_validation"
    r"|random_requests|random_workloads|reviewed_objects|table_columns|template_warnings)\.py"
)
"""Tests on the shared real server and those of their files, which two workers run, before others.

They mostly wait: on one worker they would last longer than all other tests on the others.
"""

_REAL_SERVER = re.compile("tests/(apiserver|realkube)/")
"""Of them, those of the server itself, which one of the two workers runs: about half of them."""


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Stop the shared real servers when the next test uses none: they cost something when idle."""
    if _REAL.search(item.nodeid) and not (nextitem and _REAL.search(nextitem.nodeid)):
        for kube in RealKube.shared:
            kube.stop()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Start with the slowest tests on xdist workers."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: _rank(item.nodeid))


def _rank(test: str) -> int:
    if _REAL.search(test):
        return -1
    return next(
        (rank for rank, path in enumerate(_SLOWEST_FIRST) if path in test), len(_SLOWEST_FIRST)
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Assign whole files to a worker: fixtures of their tests are set up once, in order.

    The tests on a real server count as two files, and those that exclude each other as one.
    """
    from xdist.scheduler import LoadScopeScheduling

    config.option.loadscopereorder = False
    scheduler = LoadScopeScheduling(config, log)
    scheduler._split_scope = _scope_of
    return scheduler


def _scope_of(test: str) -> str:
    """Return the scope of tests that run on one worker with this test."""
    if _REAL.search(test):
        return "real server" if _REAL_SERVER.search(test) else "components on a real server"
    return _EXCLUSIVE if _EXCLUSIVE in test else test.partition("::")[0]
