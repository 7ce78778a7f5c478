"""Notices when the network namespace of the node loses its connection to the machine."""

import socket
from collections.abc import Callable

from ....kube.client.events import EventType
from ....machinery.clock import Clock

CHECK_INTERVAL = 2.0
"""Seconds between two readings of the routes."""

_DEFAULT = "00000000"
Report = Callable[[EventType, str, str], None]
"""Records an event of a type with a reason and a message."""


def uplink() -> int:
    """Return the number of the device with the default route, new for each device; 0: none."""
    with open("/proc/net/route", encoding="ascii") as file:
        fields = [line.split() for line in file]
    device = next((each[0] for each in fields if each[1] == _DEFAULT), "")
    try:
        return socket.if_nametoindex(device) if device else 0
    except OSError:  # it was just removed
        return 0


async def watch_uplink(report: Report, *, clock: Clock, read: Callable[[], int] = uplink) -> None:
    """Report each loss of the connection, and each new one after the first, until cancelled."""
    first = last = read()
    while True:
        await clock.sleep(CHECK_INTERVAL)
        found = read()
        if found == last:
            continue
        if not found:
            report("Warning", "NodeNetworkLost", "pasta has ended: pods reach each other only")
        elif first:
            report(
                "Warning",
                "NodeNetworkRestarted",
                "pasta was started again: earlier connections out of the node have ended",
            )
        first, last = first or found, found
