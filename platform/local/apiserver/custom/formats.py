"""Checks of the ``format`` of strings in schemas: dates, addresses and others."""

import base64
import ipaddress
import re
import urllib.parse
from collections.abc import Callable
from datetime import date

from ....machinery.cel.kubernetes_functions import accepts
from ....model import durations, times

_HOSTNAME = re.compile(
    r"[a-zA-Z0-9]([-a-zA-Z0-9]{0,61}[a-zA-Z0-9])?(\.[a-zA-Z0-9]([-a-zA-Z0-9]{0,61}[a-zA-Z0-9])?)*"
)
_EMAIL = re.compile(r"[^@\s]+@[^@\s]+")
_UUID = re.compile(r"(?i)[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}")
_MAC = re.compile(r"(?i)[0-9a-f]{2}([:-][0-9a-f]{2}){5,7}")


def _is_uri(text: str) -> bool:
    return bool(urllib.parse.urlsplit(text).scheme)


FORMATS: dict[str, Callable[[str], bool]] = {
    "date-time": accepts(times.parse),
    "datetime": accepts(times.parse),
    "date": accepts(date.fromisoformat),
    "duration": accepts(durations.parse),
    "byte": accepts(lambda text: base64.b64decode(text, validate=True)),
    "uri": _is_uri,
    "ipv4": accepts(ipaddress.IPv4Address),
    "ipv6": accepts(ipaddress.IPv6Address),
    "cidr": accepts(lambda text: ipaddress.ip_network(text, strict=False)),
    "hostname": lambda text: bool(_HOSTNAME.fullmatch(text)),
    "email": lambda text: bool(_EMAIL.fullmatch(text)),
    "uuid": lambda text: bool(_UUID.fullmatch(text)),
    "mac": lambda text: bool(_MAC.fullmatch(text)),
}
"""Checks by format; other formats, such as ``password``, have no effect."""
