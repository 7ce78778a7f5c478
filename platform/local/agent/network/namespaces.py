"""A network namespace for each pod, with an address that the machine routes to it.

The namespace has one end of a veth pair, the machine the other; each packet of a pod is routed by
the machine, so that no bridge is needed, and a pod cannot send with the address of another.
Everything has a name that contains a tag of the data directory: so what an agent left that was
killed is found again, and clusters on one machine do not disturb each other. Needs root, and the
programs `ip` and `nft`.
"""

import ctypes
import errno
import fcntl
import hashlib
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from ....model.service_network import HOST_RANGES, NAMESPACE_RANGES

T = TypeVar("T")

_DIRECTORY = Path("/run/netns")
"""Where `ip netns` keeps namespaces."""

_LOCK = Path("/run/batholith-pod-network.lock")
_PREFIX, _LINK_PREFIX = "batholith-", "bth"
_GATEWAY = "169.254.1.1"
"""Next hop of all pods: no address of any host, since each pod is the only one on its link."""

_GATEWAY_MAC = "02:00:00:00:00:01"
_FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")
_MARKER = "pod-network"
"""File of the data directory that exists while the network of the machine is changed."""

_SYSCTLS = {
    # As container runtimes set them: pods have no capabilities over their namespace.
    "net/ipv4/ip_unprivileged_port_start": "0",
    "net/ipv4/ping_group_range": "0 2147483647",
}
_TIMEOUT = 30.0
_LOOPBACK_HOSTS = ("127.0.0.1", "::1")
_LIBC = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWNET = 0x40000000


def unsupported_reason() -> str:
    """Return why this process cannot create network namespaces for pods; empty if it can."""
    if os.geteuid() != 0:
        return "only root can create network namespaces that the machine routes to"
    for program, package in (("ip", "iproute2"), ("nft", "nftables")):
        if shutil.which(program) is None:
            return f"the program {program} is missing (Debian's package {package})"
    name = f"{_PREFIX}probe-{os.getpid()}"
    try:
        _run("ip", "netns", "add", name)
        _run("ip", "netns", "del", name)
        _run("nft", "list", "tables")
    except OSError as error:
        return str(error)
    return ""


class HostNetwork:
    """The network of the machine, in which all pods run."""

    ranges = HOST_RANGES

    def start(self) -> None:
        """Nothing has to be prepared."""

    def path(self, uid: str) -> str:
        """Return that there is no namespace."""
        return ""

    def set_up(self, uid: str, ip: str) -> None:
        """All loopback addresses exist."""

    def tear_down(self, uid: str) -> None:
        """No pod has a namespace."""

    def remove_others(self, uids: Collection[str]) -> None:
        """No pod has a namespace."""

    def connect(self, uid: str, port: int) -> socket.socket:
        """Fail: no pod has a namespace."""
        raise OSError(errno.ENOENT, "the pod has no network namespace")


class NamespaceNetwork:
    """The network namespaces of the pods of one data directory. All methods block."""

    ranges = NAMESPACE_RANGES

    def __init__(self, data_dir: Path) -> None:
        self._marker = data_dir / _MARKER
        tag = hashlib.blake2b(str(data_dir.resolve()).encode(), digest_size=2).hexdigest()
        self._names = f"{_PREFIX}{tag}-"
        self._table = f"{_PREFIX}{tag}"
        self._links = f"{_LINK_PREFIX}{tag}"

    def start(self) -> None:
        """Prepare the machine: addresses of the node and of Services, forwarding, rules.

        Raises:
            OSError: that is not possible.
        """
        with _locked():
            self._start()

    def _start(self) -> None:
        self._marker.touch()
        _run("ip", "address", "replace", f"{self.ranges.node_ip}/32", "dev", "lo")
        # All addresses of Services are local, so that a proxy can listen on any of them.
        _run("ip", "route", "replace", "local", str(self.ranges.cluster_ips), "dev", "lo")
        _run("nft", "-f", "-", text=self._rules())
        _FORWARDING.write_text("1")

    def path(self, uid: str) -> str:
        """Return the path of a pod's namespace."""
        return str(_DIRECTORY / f"{self._names}{uid}")

    def set_up(self, uid: str, ip: str) -> None:
        """Create the namespace of a pod with its address, unless it is complete.

        Raises:
            OSError: that is not possible.
        """
        name, link = f"{self._names}{uid}", self._link(uid)
        if os.path.exists(self.path(uid)) and _has_route(ip, link):
            return
        self.tear_down(uid)
        _run("ip", "netns", "add", name)
        _run(
            "ip",
            "-batch",
            "-",
            text=f"""\
link add {link} address {_GATEWAY_MAC} type veth peer name eth0 netns {name}
link set {link} addrgenmode none
link set {link} up
""",
        )
        _run(
            "ip",
            "-netns",
            name,
            "-batch",
            "-",
            text=f"""\
link set lo up
link set eth0 addrgenmode none
address add {ip}/32 dev eth0
link set eth0 up
route add {_GATEWAY} dev eth0 scope link
route add default via {_GATEWAY} dev eth0
neighbour add {_GATEWAY} lladdr {_GATEWAY_MAC} dev eth0 nud permanent
""",
        )
        self.enter(uid, _write_sysctls)
        # A pod cannot send with an address that is not routed to it.
        Path(f"/proc/sys/net/ipv4/conf/{link}/rp_filter").write_text("1")
        # Last: without it the set-up is not complete.
        _run("ip", "route", "add", f"{ip}/32", "dev", link, "src", self.ranges.node_ip)

    def tear_down(self, uid: str) -> None:
        """Remove the namespace of a pod, if there is one."""
        self._remove(f"{self._names}{uid}", self._link(uid))

    def remove_others(self, uids: Collection[str]) -> None:
        """Remove the namespaces of all pods but those with *uids*."""
        for uid in self._known():
            if uid not in uids:
                self.tear_down(uid)

    def remove_all(self) -> None:
        """Remove all namespaces, and what `start` changed.

        The machine still forwards packets: another program may rely on that by now.
        """
        if self._marker.exists():
            with _locked():
                self._remove_all()

    def _remove_all(self) -> None:
        self.remove_others(())
        tables = ""
        with suppress(OSError):  # the program may have been removed since
            _run("nft", "delete", "table", "ip", self._table)
        with suppress(OSError):
            tables = _run("nft", "list", "tables")
        if f"table ip {_PREFIX}" not in tables:
            with suppress(OSError):
                _run("ip", "route", "del", "local", str(self.ranges.cluster_ips), "dev", "lo")
            with suppress(OSError):
                _run("ip", "address", "del", f"{self.ranges.node_ip}/32", "dev", "lo")
        self._marker.unlink(missing_ok=True)

    def enter(self, uid: str, work: Callable[[], T]) -> T:
        """Run *work* in the namespace of a pod, and return its result.

        Raises:
            OSError: the pod has none.
        """
        return _in_namespace(self.path(uid), work)

    def connect(self, uid: str, port: int) -> socket.socket:
        """Connect to a port on the loopback addresses of a pod.

        Raises:
            OSError: nothing listens there, or the pod has no namespace.
        """

        def connected() -> socket.socket:
            errors = []
            for host in _LOOPBACK_HOSTS:
                try:
                    return socket.create_connection((host, port), timeout=_TIMEOUT)
                except OSError as error:
                    errors.append(error)
            raise errors[0]

        return self.enter(uid, connected)

    def _link(self, uid: str) -> str:
        # At most 15 characters.
        return self._links + hashlib.blake2b(uid.encode(), digest_size=4).hexdigest()

    def _known(self) -> Iterator[str]:
        """Yield the uids of the pods that have a namespace."""
        with suppress(FileNotFoundError):
            for name in os.listdir(_DIRECTORY):
                if name.startswith(self._names):
                    yield name.removeprefix(self._names)

    def _remove(self, name: str, link: str) -> None:
        if os.path.exists(f"/sys/class/net/{link}"):
            with suppress(OSError):  # the end of the namespace ends both
                _run("ip", "link", "del", link)
        if os.path.lexists(_DIRECTORY / name):
            _run("ip", "netns", "del", name)

    def _rules(self) -> str:
        """Return the rules for nft, which replace earlier ones at once.

        Pods reach each other, the machine and what the machine reaches; nothing but the machine
        reaches pods.
        """
        own, any_pod = f'"{self._links}*"', f'"{_LINK_PREFIX}*"'
        return f"""
table ip {self._table} {{}}
delete table ip {self._table}
table ip {self._table} {{
    chain forward {{
        type filter hook forward priority filter; policy accept;
        ct state established,related accept
        iifname {own} oifname {own} accept
        oifname {own} drop
        iifname {own} oifname {any_pod} drop
    }}
    chain postrouting {{
        type nat hook postrouting priority srcnat; policy accept;
        ip saddr {self.ranges.pod_ips} oifname != {any_pod} masquerade
    }}
}}
"""


@contextmanager
def _locked() -> Iterator[None]:
    """Keep other clusters from changing what all share: the addresses of node and Services."""
    with open(_LOCK, "w", encoding="ascii") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _write_sysctls() -> None:
    for name, value in _SYSCTLS.items():
        Path("/proc/sys", name).write_text(value)


def _in_namespace(path: str, work: Callable[[], T]) -> T:
    """Run *work* in a new thread, which enters a namespace and never leaves it.

    Raises:
        OSError: the namespace does not exist.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def enter() -> None:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                if _LIBC.setns(descriptor, _CLONE_NEWNET) != 0:
                    raise OSError(ctypes.get_errno(), f"cannot enter {path}")
            finally:
                os.close(descriptor)
            results.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def _has_route(ip: str, link: str) -> bool:
    """Whether the machine routes *ip* to *link*, by the kernel's table of routes."""
    wanted = socket.inet_aton(ip)[::-1].hex().upper()
    with open("/proc/net/route", encoding="ascii") as file:
        return any(line.split()[:2] == [link, wanted] for line in file)


def _run(*argv: str, text: str = "") -> str:
    """Run a program, with *text* as its input; return its output.

    Raises:
        OSError: it does not exist or it failed; the error contains what it printed.
    """
    try:
        ended = subprocess.run(  # noqa: S603 - programs that are named here, without a shell
            argv, input=text, capture_output=True, text=True, timeout=_TIMEOUT
        )
    except subprocess.TimeoutExpired as error:
        raise OSError(f"{argv[0]} took longer than {_TIMEOUT:g} s") from error
    if ended.returncode != 0:
        message = " ".join((ended.stderr or ended.stdout).split())
        raise OSError(f"{' '.join(argv)}: {message or f'exit code {ended.returncode}'}")
    return ended.stdout
