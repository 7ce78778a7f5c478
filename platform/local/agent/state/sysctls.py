"""Sysctls of pods: which a node permits, and to which namespace they belong; pure functions."""

from collections.abc import Iterable, Iterator
from enum import StrEnum

from .core_types import Pod

SAFE = frozenset({
    "kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start", "net.ipv4.ping_group_range", "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl", "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_keepalive_time", "net.ipv4.tcp_rmem", "net.ipv4.tcp_syncookies",
    "net.ipv4.tcp_wmem",
})  # fmt: skip
"""What every pod may set, as on a kubelet."""

_SWAPPED = str.maketrans("./", "/.")


class Namespace(StrEnum):
    """Kind of the namespaces that have their own value of a sysctl."""

    IPC = "ipc"
    NET = "net"


_PREFIXES = (
    ("kernel.shm", Namespace.IPC),
    ("kernel.msg", Namespace.IPC),
    ("fs.mqueue.", Namespace.IPC),
    ("net.", Namespace.NET),
)


def namespace_of(name: str) -> Namespace | None:
    """Return the namespace of a sysctl, or of the prefix of some; None: there may be none."""
    if name == "kernel.sem":
        return Namespace.IPC
    return next((found for prefix, found in _PREFIXES if name.startswith(prefix)), None)


def parse_allowed(text: str) -> tuple[str, ...]:
    """Return the names in *text*, separated by commas; one may end with ``*``.

    Raises:
        ValueError: one is not known to belong to a namespace.
    """
    names = tuple(filter(None, (each.strip() for each in text.split(","))))
    for name in names:
        if namespace_of(name.removesuffix("*")) is None:
            raise ValueError(f"{name!r} is not known to be a sysctl of a namespace")
    return names


def forbidden_sysctl(pod: Pod, allowed: Iterable[str]) -> str:
    """Return the first sysctl of *pod* that is neither safe nor *allowed*; empty if there is none.

    The API server has checked that a sysctl of the network needs one of the pod's own.
    """
    patterns = tuple(allowed)
    for name, _ in _sysctls(pod):
        if name not in SAFE and not any(_matches(name, each) for each in patterns):
            return name
    return ""


def sysctls_of(pod: Pod, namespace: Namespace) -> list[tuple[str, str]]:
    """Return the paths below /proc/sys, and the values, of the sysctls of a namespace."""
    return [
        (name.translate(_SWAPPED), value)
        for name, value in _sysctls(pod)
        if namespace_of(name) is namespace
    ]


def _sysctls(pod: Pod) -> Iterator[tuple[str, str]]:
    """Yield names, as written with dots, and values."""
    for each in pod.spec.security_context.sysctls:
        separator = next((sign for sign in each.name if sign in "./"), "")
        yield each.name.translate(_SWAPPED) if separator == "/" else each.name, each.value


def _matches(name: str, pattern: str) -> bool:
    if pattern.endswith("*"):
        return name.startswith(pattern.removesuffix("*"))
    return name == pattern
