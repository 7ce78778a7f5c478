"""A network namespace for the processes of a second machine."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from support import embedded_cluster

IP = shutil.which("ip", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


@dataclass(frozen=True, kw_only=True)
class SecondMachine:
    """A namespace that a cable connects to the one of the test."""

    name: str
    first_address: str
    """Of the test's end of the cable."""
    second_of_first: str
    """Another one of that end, for a second node of the first machine."""
    address: str

    async def batholith(self, *arguments: str) -> embedded_cluster.ProcessResult:
        """Run ``batholith`` there."""
        assert IP is not None
        inside = (IP, "netns", "exec", self.name)
        return await embedded_cluster.run(*inside, sys.executable, "-m", "batholith", *arguments)


@contextmanager
def second_machine() -> Iterator[SecondMachine]:
    """Create the namespace for the block.

    Skips without root or iproute2; fails instead where ``BATHOLITH_REQUIRE`` demands it.
    """
    if IP is None or os.geteuid():
        if "netns" in os.environ.get("BATHOLITH_REQUIRE", "").split(","):
            pytest.fail("network namespaces are required, which need root and iproute2")
        pytest.skip("network namespaces need root and iproute2")
    number = os.getpid()
    subnet = f"10.{200 + number // 65536 % 50}.{number // 256 % 256}"
    host = number % 32 * 8
    machine = SecondMachine(
        name=f"batholith-{number}",
        first_address=f"{subnet}.{host + 1}",
        second_of_first=f"{subnet}.{host + 2}",
        address=f"{subnet}.{host + 3}",
    )
    here, there = f"bh{number}", f"bt{number}"
    _ip("netns", "add", machine.name)
    try:
        _ip("link", "add", here, "type", "veth", "peer", "name", there, "netns", machine.name)
        for address in (machine.first_address, machine.second_of_first):
            _ip("addr", "add", f"{address}/29", "dev", here)
        _ip("link", "set", here, "up")
        _ip("-n", machine.name, "addr", "add", f"{machine.address}/29", "dev", there)
        for device in ("lo", there):
            _ip("-n", machine.name, "link", "set", device, "up")
        yield machine
    finally:
        _ip("netns", "del", machine.name)  # and with it the cable


def _ip(*arguments: str) -> None:
    assert IP is not None
    subprocess.run((IP, *arguments), check=True)
