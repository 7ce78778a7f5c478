"""The history in a PostgreSQL that several replicas share."""

import asyncio
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from batholith.store.commands import CommandRecord, CommandState, CommandStore, timestamp
from batholith.store.database import Database
from batholith.store.migrations import MIGRATIONS

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


def _program(name: str) -> str | None:
    """A program of PostgreSQL; Debian keeps them out of the search path."""
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return shutil.which(name, path=os.pathsep.join([os.environ["PATH"], *map(str, places)]))


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server that is reached by a socket in a folder of its own.

    Not one of pytest's, whose parents are for our user alone; and a path to a socket is short.
    """
    initdb, pg_ctl = _program("initdb"), _program("pg_ctl")
    if initdb is None or pg_ctl is None:
        if "postgres" in os.environ.get("BATHOLITH_REQUIRE", "").split(","):
            pytest.fail("PostgreSQL is required and not installed")
        pytest.skip("PostgreSQL is not installed")
    # It will not run as root; then it runs as the user that its package made.
    user = "postgres" if os.geteuid() == 0 else None
    with tempfile.TemporaryDirectory(prefix="postgres-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        if user is not None:
            shutil.chown(folder, user)
        yield from _serving(folder, user, initdb=initdb, pg_ctl=pg_ctl)


def _serving(folder: Path, user: str | None, *, initdb: str, pg_ctl: str) -> Iterator[str]:
    def run(*command: str) -> None:
        done = subprocess.run(
            command, user=user, cwd=folder, capture_output=True, text=True, timeout=100
        )
        assert done.returncode == 0, done.stderr

    run(initdb, "--pgdata=data", "--auth=trust", "--username=batholith", "--no-sync")
    options = f"-c listen_addresses= -c unix_socket_directories={folder} -c fsync=off"
    run(pg_ctl, "start", "--pgdata=data", "--wait", "--log=log", f"--options={options}")
    try:
        yield f"postgresql+psycopg://batholith@/postgres?host={folder}"
    finally:
        run(pg_ctl, "stop", "--pgdata=data", "--mode=immediate")


def record(id_: str) -> CommandRecord:
    return CommandRecord(
        id=id_,
        namespace="default",
        job="train",
        job_uid="u",
        action="AbortJob",
        who="ada",
        command=f"train-{id_}",
        received_at=timestamp(NOON),
    )


async def test_replicas_that_start_at_once_make_one_schema(url: str) -> None:
    replicas = [Database(url) for _ in range(8)]
    await asyncio.gather(*(replica.migrate(MIGRATIONS) for replica in replicas))
    await CommandStore(replicas[0]).add(record("1"))
    for replica in replicas:
        assert await CommandStore(replica).get("default", "train", "1") == record("1")
        await replica.close()


async def test_the_first_outcome_stands_whichever_replica_wrote_it(url: str) -> None:
    replicas = [Database(url) for _ in range(4)]
    await asyncio.gather(*(replica.migrate(MIGRATIONS) for replica in replicas))
    stores = [CommandStore(replica) for replica in replicas]
    await stores[0].add(record("2"))
    await asyncio.gather(
        *(
            store.finish("2", CommandState.EXECUTED, detail=str(number), at=NOON)
            for number, store in enumerate(stores)
        )
    )
    outcomes = {str(await store.get("default", "train", "2")) for store in stores}
    assert len(outcomes) == 1
    for replica in replicas:
        await replica.close()
