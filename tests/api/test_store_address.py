"""The store's URL, which may contain a password, is set by a variable and never logged."""

import asyncio
import contextlib
import os
import sqlite3
import sys
from pathlib import Path

import pytest
from support.components import component

from batholith.local.supervisor import kubeconfig

pytestmark = pytest.mark.process

PASSWORD = "open-sesame"


@pytest.fixture
def access(tmp_path: Path) -> Path:
    """A kubeconfig of an unreachable server."""
    path = tmp_path / "kubeconfig"
    unreachable = kubeconfig.ClusterAccess(
        server="https://127.0.0.1:1", ca=b"", user="api", token="t"
    )
    kubeconfig.write(path, unreachable)
    return path


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        (f"postgresql+nodriver://u:{PASSWORD}@127.0.0.1:1/x", "postgresql+nodriver://u:***@"),
        (f"{PASSWORD} and no address", "not a valid SQLAlchemy URL"),
        ("sqlite:////nowhere/x.db", "cannot use the store sqlite:////nowhere/x.db"),
    ],
    ids=["no driver", "no address", "no directory"],
)
async def test_errors_of_the_store_do_not_contain_the_password(
    address: str, expected: str, access: Path
) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "batholith.cli", "api", "--listen-address=127.0.0.1:0",
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=dict(os.environ) | {"BATHOLITH_STORE": address, "KUBECONFIG": str(access)},
    )  # fmt: skip
    out, _ = await process.communicate()
    assert process.returncode != 0
    assert expected in out.decode()
    assert out.count(b"\n") == 1, out
    assert PASSWORD.encode() not in out


async def test_logs_of_an_unavailable_store_do_not_contain_the_password(access: Path) -> None:
    store = f"postgresql+psycopg://u:{PASSWORD}@127.0.0.1:1/x"
    arguments = ("api", "--listen-address=127.0.0.1:0", f"--kubeconfig={access}")
    async with component(*arguments, BATHOLITH_STORE=store) as process:
        line = await process.wait_line("cannot migrate the store")
        assert "cannot use the store postgresql+psycopg://u:***@127.0.0.1:1/x" in line.string
        assert "connection failed" in line.string
        assert await process.stop() == 0
    assert PASSWORD not in process.text


async def test_a_store_of_a_newer_version_ends_the_process_with_one_line(
    access: Path, tmp_path: Path
) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "api.db")) as database, database:
        database.execute("CREATE TABLE alembic_version (version_num TEXT PRIMARY KEY)")
        database.execute("INSERT INTO alembic_version VALUES ('0099')")
    store = f"--store=sqlite:///{tmp_path / 'api.db'}"
    arguments = ("api", "--listen-address=127.0.0.1:0", f"--kubeconfig={access}", store)
    async with component(*arguments) as process:
        assert await process.wait_exit() == 1
    assert "database schema is at revision 0099" in process.text
    assert "Traceback" not in process.text
