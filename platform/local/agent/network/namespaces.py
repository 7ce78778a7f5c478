"""A network namespace for each pod, with an address that the machine routes to it.

The namespace has one end of a veth pair, the machine the other; each packet of a pod is routed by
the machine, so that no bridge is needed, and a pod cannot send with the address of another.
Needs root, and the programs `ip` and `nft`.
"""

import ctypes
import errno
import fcntl
import hashlib
import os
import socket
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from ....model.service_network import HOST_RANGES, NAMESPACE_RANGES
from ...network.node_namespace import find_program, is_entered, missing_support
from ...network.packet_rules import PREFIX, NetworkNames, run_program
from .pod_rules import NO_RULES, PodRules, pods_table

T = TypeVar("T")
Sysctls = Sequence[tuple[str, str]]
"""Paths below /proc/sys, and values."""

_DIRECTORY = Path("/run/netns")
"""Where `ip netns` keeps namespaces."""

_LOCK = Path("/run/batholith-pod-network.lock")
_GATEWAY = "169.254.1.1"
"""Next hop of all pods: no address of any host, since each pod is the only one on its link."""

_GATEWAY_MAC = "02:00:00:00:00:01"
_FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")
_TIMEOUT = 30.0
_LOOPBACK_HOSTS = ("127.0.0.1", "::1")
_LIBC = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWNET, _MS_BIND, _MNT_DETACH = 0x40000000, 0x1000, 2


def unsupported_reason() -> str:
    """Return why this process cannot create network namespaces for pods; empty if it can."""
    if os.geteuid() != 0:
        return missing_support()
    for program, package in (("ip", "iproute2"), ("nft", "nftables")):
        if find_program(program) is None:
            return f"the program {program} is missing (Debian's package {package})"
    name = f"{PREFIX}probe-{os.getpid()}"
    try:
        run_program("ip", "netns", "add", name)
        run_program("ip", "netns", "del", name)
        run_program("nft", "list", "tables")
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

    def set_up(self, uid: str, ip: str, sysctls: Sysctls = ()) -> None:
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

    def __init__(self, data_dir: Path, *, dns_ip: str = "") -> None:
        self._names = NetworkNames(data_dir)
        self.dns_ip = dns_ip
        """The address of the cluster's name server, if it has one."""

        self._directory = data_dir / "netns" if is_entered() else _DIRECTORY

    def start(self) -> None:
        """Prepare the machine: addresses of the node and of Services, forwarding, rules.

        Raises:
            OSError: that is not possible.
        """
        with _locked():
            self._start()

    def _start(self) -> None:
        self._names.marker.write_text(self.dns_ip)
        for address in filter(None, (self.ranges.node_ip, self.dns_ip)):
            run_program("ip", "address", "replace", f"{address}/32", "dev", "lo")
        # All addresses of Services are local, so that a proxy can listen on any of them.
        run_program("ip", "route", "replace", "local", str(self.ranges.cluster_ips), "dev", "lo")
        # An earlier agent's rules apply until this one knows the policies.
        if f"table ip {self._names.pods_table}\n" not in run_program("nft", "list", "tables"):
            self.apply(NO_RULES)
        _FORWARDING.write_text("1")

    def apply(self, rules: PodRules) -> None:
        """Replace the rules for packets at once; connections that exist continue.

        Raises:
            OSError: that is not possible; the earlier rules apply.
        """
        content = pods_table(self._names, self.ranges, rules)
        self._names.replace_table(self._names.pods_table, content)

    def path(self, uid: str) -> str:
        """Return the path of a pod's namespace."""
        return str(self._directory / f"{self._names.namespaces}{uid}")

    def set_up(self, uid: str, ip: str, sysctls: Sysctls = ()) -> None:
        """Create the namespace of a pod with its address, unless it is complete.

        *sysctls* are those of the pod.

        Raises:
            OSError: that is not possible.
        """
        link = self.link(uid)
        if os.path.exists(self.path(uid)) and has_route(ip, link):
            return
        self.tear_down(uid)
        path = self.path(uid)
        _create_namespace(Path(path))
        _run_batch(
            f"""\
link add {link} address {_GATEWAY_MAC} type veth peer name eth0 netns {path}
link set {link} addrgenmode none
link set {link} up
"""
        )
        inside = f"""\
link set lo up
link set eth0 addrgenmode none
address add {ip}/32 dev eth0
link set eth0 up
route add {_GATEWAY} dev eth0 scope link
route add default via {_GATEWAY} dev eth0
neighbour add {_GATEWAY} lladdr {_GATEWAY_MAC} dev eth0 nud permanent
"""
        self.enter(uid, lambda: _run_batch(inside))
        self.enter(uid, lambda: _write_sysctls(sysctls))
        # A pod cannot send with an address that is not routed to it.
        Path(f"/proc/sys/net/ipv4/conf/{link}/rp_filter").write_text("1")
        # Last: without it the set-up is not complete.
        run_program("ip", "route", "add", f"{ip}/32", "dev", link, "src", self.ranges.node_ip)

    def tear_down(self, uid: str) -> None:
        """Remove the namespace of a pod, if there is one."""
        self._remove(Path(self.path(uid)), self.link(uid))

    def remove_others(self, uids: Collection[str]) -> None:
        """Remove the namespaces of all pods but those with *uids*."""
        for uid in self._known():
            if uid not in uids:
                self.tear_down(uid)

    def remove_all(self) -> None:
        """Remove all namespaces, and what `start` changed.

        The machine still forwards packets: another program may rely on that by now.
        """
        if self._names.marker.exists():
            with _locked():
                self._remove_all()

    def _remove_all(self) -> None:
        self.remove_others(())
        tables = ""
        with suppress(OSError):  # the program may have been removed since
            self._names.delete_table(self._names.services_table)
            self._names.delete_table(self._names.pods_table)
        with suppress(OSError):
            tables = run_program("nft", "list", "tables")
        if dns_ip := self._names.marker.read_text():
            with suppress(OSError):
                run_program("ip", "address", "del", f"{dns_ip}/32", "dev", "lo")
        if f"table ip {PREFIX}" not in tables:
            with suppress(OSError):
                run_program(
                    "ip", "route", "del", "local", str(self.ranges.cluster_ips), "dev", "lo"
                )
            with suppress(OSError):
                run_program("ip", "address", "del", f"{self.ranges.node_ip}/32", "dev", "lo")
        self._names.marker.unlink(missing_ok=True)

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

    def link(self, uid: str) -> str:
        """Return the name of the device that leads to a pod."""
        # At most 15 characters.
        return self._names.links + hashlib.blake2b(uid.encode(), digest_size=4).hexdigest()

    def _known(self) -> Iterator[str]:
        """Yield the uids of the pods that have a namespace."""
        with suppress(FileNotFoundError):
            for name in os.listdir(self._directory):
                if name.startswith(self._names.namespaces):
                    yield name.removeprefix(self._names.namespaces)

    def _remove(self, path: Path, link: str) -> None:
        if os.path.exists(f"/proc/sys/net/ipv4/conf/{link}"):
            with suppress(OSError):  # the end of the namespace ends both
                run_program("ip", "link", "del", link)
        if path.exists():
            _LIBC.umount2(os.fsencode(path), _MNT_DETACH)  # fails if it is none
            path.unlink(missing_ok=True)


@contextmanager
def _locked() -> Iterator[None]:
    """Keep other clusters from changing what all share: the addresses of node and Services."""
    if is_entered():  # the network is of this cluster alone
        yield
        return
    with open(_LOCK, "w", encoding="ascii") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _run_batch(commands: str) -> None:
    run_program("ip", "-batch", "-", text=commands)


def _create_namespace(path: Path) -> None:
    """Create a network namespace that exists as long as *path*, as `ip netns add` does.

    Raises:
        OSError: that is not possible.
    """
    path.parent.mkdir(mode=0o755, exist_ok=True)
    path.touch()

    def create() -> None:
        _check(_LIBC.unshare(_CLONE_NEWNET), path)
        source = b"/proc/thread-self/ns/net"
        _check(_LIBC.mount(source, os.fsencode(path), None, _MS_BIND, None), path)

    _in_thread(create)


def _write_sysctls(own: Sysctls) -> None:
    """Set what container runtimes set, since pods have no capabilities over their namespace, and
    what the pod asks for."""
    groups = f"{os.getegid()} {os.getegid()}" if is_entered() else "0 2147483647"
    for name, value in (("ip_unprivileged_port_start", "0"), ("ping_group_range", groups)):
        Path("/proc/sys/net/ipv4", name).write_text(value)
    for path, value in own:
        try:
            Path("/proc/sys", path).write_text(value)
        except OSError as error:
            text = f"sysctl {path} cannot be {value!r}: {error.strerror}"
            raise OSError(error.errno, text) from None


def _in_namespace(path: str, work: Callable[[], T]) -> T:
    """Run *work* in a new thread, which enters a namespace and never leaves it.

    Raises:
        OSError: the namespace does not exist.
    """

    def enter() -> T:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _check(_LIBC.setns(descriptor, _CLONE_NEWNET), path)
        finally:
            os.close(descriptor)
        return work()

    return _in_thread(enter)


def _check(result: int, path: str | Path) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"network namespace: {os.strerror(number)}", str(path))


def _in_thread(work: Callable[[], T]) -> T:
    """Run *work* in a new thread, of which the namespaces may differ from then on."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def has_route(ip: str, link: str) -> bool:
    """Whether the machine routes *ip* to *link*, by the kernel's table of routes."""
    wanted = socket.inet_aton(ip)[::-1].hex().upper()
    with open("/proc/net/route", encoding="ascii") as file:
        return any(line.split()[:2] == [link, wanted] for line in file)
