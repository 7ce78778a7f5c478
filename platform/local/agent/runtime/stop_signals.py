"""Names of the signals that stop containers, as in pods and in images."""

import re
import signal

_REAL_TIME = re.compile(r"RT(MIN\+|MAX-)([0-9]{1,2})")


def signal_number(name: str) -> int | None:
    """Return the number of ``SIGINT``, ``INT``, ``2`` or ``SIGRTMIN+3``; ``None`` if unknown."""
    plain = name.strip().upper().removeprefix("SIG")
    if plain.isascii() and plain.isdigit():
        return _known(int(plain[:3]))
    match = _REAL_TIME.fullmatch(plain)
    if match:
        offset = int(match[2])
        up = match[1] == "MIN+"
        return _known(signal.SIGRTMIN + offset if up else signal.SIGRTMAX - offset)
    try:
        return int(signal.Signals[f"SIG{plain}"])
    except KeyError:
        return None


def _known(number: int) -> int | None:
    return number if number in signal.valid_signals() else None
