"""The address of the store holds a password: it comes by the environment and is never shown."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from batholith.cluster import kubeconfig

PASSWORD = "open-sesame"


@pytest.mark.parametrize(
    ("address", "told"),
    [
        (f"postgresql+psycopg://u:{PASSWORD}@127.0.0.1:1/x", "connection failed"),
        (f"postgresql+nodriver://u:{PASSWORD}@127.0.0.1:1/x", "postgresql+nodriver://u:***@"),
        (f"{PASSWORD} and no address", "no URL that SQLAlchemy understands"),
        ("sqlite:////nowhere/x.db", "/nowhere/x.db cannot be used"),
    ],
    ids=["nobody answers", "no driver", "no address", "no folder"],
)
async def test_the_password_is_not_told_when_the_store_cannot_be_used(
    address: str, told: str, tmp_path: Path
) -> None:
    access = tmp_path / "kubeconfig"
    nobody = kubeconfig.Access(server="https://127.0.0.1:1", ca=b"", user="api", token="t")
    kubeconfig.write(access, nobody)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "batholith.cli", "api", "--listen-address=127.0.0.1:0",
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=dict(os.environ) | {"BATHOLITH_STORE": address, "KUBECONFIG": str(access)},
    )  # fmt: skip
    out, _ = await process.communicate()
    assert process.returncode != 0
    assert told in out.decode()
    assert out.count(b"\n") == 1, out
    assert PASSWORD.encode() not in out
