"""The warning of `up` on a machine without sandbox support."""

import os

import pytest

from batholith.cli import embedded
from batholith.cli.embedded import NO_SANDBOX_WARNING, Options, isolation_warnings
from batholith.local.agent.runtime import mounting


@pytest.mark.parametrize(
    ("user", "simulate", "nothing", "expected"),
    [
        (0, 0, True, [NO_SANDBOX_WARNING]),
        (0, 0, False, []),
        (1000, 0, True, []),
        (0, 3, True, []),
    ],
)
def test_root_is_warned_if_pods_would_run_as_root(
    monkeypatch: pytest.MonkeyPatch, user: int, simulate: int, nothing: bool, expected: list[str]
) -> None:
    monkeypatch.setattr(embedded, "lacks_sandbox_support", lambda: nothing)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert isolation_warnings(Options(simulate=simulate)) == expected


@pytest.mark.process
def test_missing_namespace_support_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise mounting.CannotStartError("unshare: Operation not permitted")

    monkeypatch.setattr(mounting, "unshare", refuse)
    assert mounting.lacks_sandbox_support()
