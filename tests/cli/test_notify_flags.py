"""Flags of ``batholith api`` about notifications."""

from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from typer.testing import CliRunner

from batholith.cli.history_flags import HistoryFlags
from batholith.cli.main import app


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--notify-allow=localhost",), "--notify-allow requires --notify-key-file"),
        (("--notify-key-file=absent",), "--notify-key-file requires --record-history"),
        (("--record-history", "--notify-key-file=absent"), "cannot read absent"),
        (
            ("--record-history", "--notify-key-file=absent", "--notify-allow=http://x"),
            "--notify-allow: 'http://x' is neither a host nor a network",
        ),
    ],
)
def test_contradictory_flags_are_rejected(flags: tuple[str, ...], message: str) -> None:
    result = CliRunner().invoke(app, ["api", "--listen-address=127.0.0.1:0", *flags])
    assert result.exit_code == 1
    assert result.stderr.startswith(f"batholith: {message}")
    assert result.stderr.count("\n") == 1


def test_flags_become_settings(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_bytes(b"0123456789abcdef\n")
    flags = HistoryFlags(record_history=True, notify_key_file=key, notify_allow=["localhost"])
    found = flags.settings(CollectorRegistry()).notifications
    assert found is not None
    assert found.key() == b"0123456789abcdef"
    assert found.destinations.error_of("http://localhost:8000/") == ""
    assert HistoryFlags().settings(CollectorRegistry()).notifications is None


def test_up_refuses_what_cannot_be_permitted(tmp_path: Path) -> None:
    arguments = ["up", "--data-dir", str(tmp_path / "data"), "--notify-allow=http://x"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1
    assert "'http://x' is neither a host nor a network" in result.stderr
    assert not (tmp_path / "data").exists()
