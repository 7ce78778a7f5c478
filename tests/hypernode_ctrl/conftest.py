"""Tests that run kopf in the process."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.polling import wait_for


@pytest.fixture(autouse=True)
async def no_open_sockets() -> AsyncIterator[None]:
    """Wait until all sockets of the test are closed, without the garbage collector.

    kopf does not wait until its connections are closed, which takes TLS some iterations of the
    loop: a process has them, but the loop of a test would end before.
    """
    before = _open_sockets()
    yield
    await wait_for(lambda: _open_sockets() <= before, "the end of all connections")


def _open_sockets() -> set[str]:
    found = set()
    for each in Path("/proc/self/fd").iterdir():
        try:
            found.add(os.readlink(each))
        except FileNotFoundError:
            continue  # the descriptor of the listing
    return {each for each in found if each.startswith("socket:")}
