"""Memory limits: the processes of a container, however deeply they are nested."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from batholith.local.agent.runtime import oom, shim

CHAIN = """
if [ "$1" -gt 0 ]; then sh "$0" $(($1 - 1)); exit; fi
exec {python} -I -S -c 'x = b"x" * (64 << 20); print("complete", flush=True); input()'
"""


@pytest.fixture
def chain(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """1,100 processes, each the child of the one before; the last one holds 64 MiB."""
    script = tmp_path / "chain.sh"
    script.write_text(CHAIN.format(python=sys.executable))
    started = subprocess.Popen(
        ["sh", str(script), "1100"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        yield started
    finally:
        os.killpg(started.pid, signal.SIGKILL)
        started.communicate()


@pytest.mark.process
async def test_memory_of_deeply_nested_processes_counts(chain: subprocess.Popen[str]) -> None:
    assert chain.stdout is not None
    assert chain.stdout.readline() == "complete\n"
    assert oom.is_over_limit([os.getpid()], 32 * 2**20)


async def test_reused_process_id_ends_the_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    children = {1: [2, 3], 2: [4], 4: [2, 1]}
    monkeypatch.setattr(shim, "children", lambda pid: children.get(pid, []))
    assert not oom.is_over_limit([1], 2**60)
