"""What `up` says of a machine that keeps nothing apart."""

import os

import pytest

from batholith.agent.runtime import mounting
from batholith.cli import embedded
from batholith.cli.embedded import NO_SANDBOX_WARNING, Options, isolation_warnings


@pytest.mark.parametrize(
    ("user", "simulate", "nothing", "said"),
    [
        (0, 0, True, [NO_SANDBOX_WARNING]),
        (0, 0, False, []),
        (1000, 0, True, []),
        (0, 3, True, []),
    ],
)
def test_root_is_warned_where_its_pods_would_be_root(
    monkeypatch: pytest.MonkeyPatch, user: int, simulate: int, nothing: bool, said: list[str]
) -> None:
    monkeypatch.setattr(embedded, "lacks_sandbox_support", lambda: nothing)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert isolation_warnings(Options(simulate=simulate)) == said


def test_a_refusal_of_every_namespace_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise mounting.CannotStartError("unshare: Operation not permitted")

    monkeypatch.setattr(mounting, "unshare", refuse)
    assert mounting.lacks_sandbox_support()
