"""Flags of ``batholith api`` about callers: contradictions end the start with one line."""

import pytest
from typer.testing import CliRunner

from batholith.cli.main import app
from batholith.cli.rest_flags import SecurityFlags

TLS = ("--tls-cert-file=a", "--tls-private-key-file=b")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--audience=rest",), "--audience requires --impersonate-callers"),
        ((*TLS, "--client-ca-file=ca.crt"), "--client-ca-file requires --impersonate-callers"),
        (
            ("--client-ca-file=ca.crt", "--impersonate-callers"),
            "--client-ca-file requires --tls-cert-file",
        ),
        (("--caller-rate=-1",), "--caller-rate=-1"),
        (("--caller-rate=nan",), "--caller-rate=nan"),
        (("--caller-rate=inf",), "--caller-rate=inf"),
        (("--cors-allowed-origins=example.org",), "invalid origin pattern 'example.org'"),
        (("--cors-allowed-origins=^a$,^(",), "invalid origin pattern '^('"),
    ],
)
def test_contradictory_flags_are_rejected(flags: tuple[str, ...], message: str) -> None:
    result = CliRunner().invoke(app, ["api", "--listen-address=127.0.0.1:0", *flags])
    assert result.exit_code == 1
    assert result.stderr.startswith(f"batholith: {message}")
    assert result.stderr.count("\n") == 1


def test_flags_become_settings() -> None:
    flags = SecurityFlags(
        audience=["a", "b"],
        impersonate_callers=True,
        caller_rate=0.5,
        cors_allowed_origins=["^https://a$,^https://b$", "//c$"],
    )
    found = flags.settings(tls=False)
    assert found.audiences == ("a", "b")
    assert found.impersonate
    assert found.caller_rate == 0.5
    assert found.cors_allowed_origins == ("^https://a$", "^https://b$", "//c$")
