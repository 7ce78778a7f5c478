"""The warning of `up` and `join` on a machine without sandbox support."""

import os
import shutil

import pytest

from batholith.cli import isolation_check
from batholith.cli.isolation_check import NO_SANDBOX, NO_SANDBOX_FOR_ROOT, isolation_warnings
from batholith.local.agent.runtime import mounting


@pytest.mark.parametrize(
    ("user", "nothing", "bubblewrap", "expected"),
    [
        (0, True, "/usr/bin/bwrap", [NO_SANDBOX_FOR_ROOT]),
        (0, False, None, []),
        (1000, True, None, [NO_SANDBOX]),
        (1000, True, "/usr/bin/bwrap", []),
        (1000, False, None, []),
    ],
)
def test_users_are_warned_if_pods_would_have_no_sandbox(
    monkeypatch: pytest.MonkeyPatch,
    user: int,
    nothing: bool,
    bubblewrap: str | None,
    expected: list[str],
) -> None:
    monkeypatch.setattr(isolation_check, "lacks_sandbox_support", lambda: nothing)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setattr(shutil, "which", {"bwrap": bubblewrap}.get)
    assert isolation_warnings() == expected


@pytest.mark.process
def test_missing_namespace_support_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise mounting.CannotStartError("unshare: Operation not permitted")

    monkeypatch.setattr(mounting, "unshare", refuse)
    assert mounting.lacks_sandbox_support()
