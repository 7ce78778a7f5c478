"""A PostgreSQL of a test's own, which the test may stop, start and hold up."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest


def _program(name: str) -> str | None:
    """A program of PostgreSQL; Debian keeps them out of the search path."""
    directories = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return shutil.which(name, path=os.pathsep.join([os.environ["PATH"], *map(str, directories)]))


@dataclass(frozen=True, slots=True)
class Postgres:
    """A server on a Unix socket in its own directory."""

    directory: Path
    user: str | None
    initdb: str
    pg_ctl: str

    @property
    def url(self) -> str:
        return f"postgresql+psycopg://batholith@/postgres?host={self.directory}"

    def create(self) -> None:
        self._run(self.initdb, "--pgdata=data", "--auth=trust", "--username=batholith", "--no-sync")

    def start(self) -> None:
        options = f"-c listen_addresses= -c unix_socket_directories={self.directory} -c fsync=off"
        self._run(
            self.pg_ctl, "start", "--pgdata=data", "--wait", "--log=log", f"--options={options}"
        )

    def stop(self) -> None:
        """End it as a crash does, if it runs."""
        if (self.directory / "data" / "postmaster.pid").exists():
            self._run(self.pg_ctl, "stop", "--pgdata=data", "--mode=immediate")

    @contextmanager
    def paused(self) -> Iterator[None]:
        """For the length of the block it accepts connections and sends no response."""
        main = int((self.directory / "data" / "postmaster.pid").read_text().split()[0])
        processes = [main]
        try:
            _stop(main)  # first: it may be about to start another child
            for child in _children(main):
                processes.append(child)
                _stop(child)
            yield
        finally:
            for each in processes:
                # The first to continue reaps those that were about to end.
                with suppress(ProcessLookupError):
                    os.kill(each, signal.SIGCONT)

    def _run(self, *command: str) -> None:
        done = subprocess.run(
            command, user=self.user, cwd=self.directory, capture_output=True, text=True, timeout=100
        )
        assert done.returncode == 0, done.stderr


def _stop(process: int) -> None:
    """Stop a process; returns once it does not run any more, which is after the signal is sent."""
    with suppress(ProcessLookupError, FileNotFoundError):
        os.kill(process, signal.SIGSTOP)
        while Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2][0] not in "TZ":
            time.sleep(0.001)  # only the parent of a process is notified that it has stopped


def _children(parent: int) -> list[int]:
    text = Path(f"/proc/{parent}/task/{parent}/children").read_text()
    return [int(each) for each in text.split()]


@contextmanager
def postgres() -> Iterator[Postgres]:
    """A server that runs.

    Its directory is not one of pytest's, whose parents are for our user alone; and a path to a
    socket is short.
    """
    initdb, pg_ctl = _program("initdb"), _program("pg_ctl")
    if initdb is None or pg_ctl is None:
        if "postgres" in os.environ.get("BATHOLITH_REQUIRE", "").split(","):
            pytest.fail("PostgreSQL is required and not installed")
        pytest.skip("PostgreSQL is not installed")
    # It refuses to run as root; then it runs as the user that its package creates.
    user = "postgres" if os.geteuid() == 0 else None
    with tempfile.TemporaryDirectory(prefix="postgres-", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        if user is not None:
            shutil.chown(directory, user)
        server = Postgres(directory, user, initdb, pg_ctl)
        server.create()
        server.start()
        try:
            yield server
        finally:
            server.stop()
