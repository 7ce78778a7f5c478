"""The network namespace of a node whose cluster runs without root.

It belongs to a user namespace in which the processes that enter it have all capabilities, but their
own user id: so the API server, the agent and the Service proxy change its network as those of root
change that of the machine. pasta connects it to the network of the machine. Of the machine's
loopback addresses only the port of the API server is reached.
"""

import ctypes
import errno
import os
import shutil
import signal
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

_NEW_NS, _NEW_USER, _NEW_NET = 0x20000, 0x10000000, 0x40000000
_NAMESPACES = (("user", _NEW_USER), ("net", _NEW_NET), ("mnt", _NEW_NS))
_MS_REC, _MS_SLAVE = 0x4000, 0x80000
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_CAP_AMBIENT = 1, 4, 47
_AMBIENT_RAISE, _AMBIENT_CLEAR_ALL = 2, 4
_CAPABILITY_VERSION = 0x20080522
_CAP_NET_ADMIN, _CAP_SYS_ADMIN = 12, 21
_PASSED = (_CAP_NET_ADMIN, _CAP_SYS_ADMIN)
"""Capabilities of programs that this process starts to change the network."""

_LIBC = ctypes.CDLL(None, use_errno=True)
SYSTEM_PROGRAMS = ("/usr/local/sbin", "/usr/sbin", "/sbin")
_PACKAGES = (("pasta", "passt"), ("ip", "iproute2"), ("nft", "nftables"))
_TUN = "/dev/net/tun"
_MESSAGE = 1024

HOLDER = "BATHOLITH_NODE_NAMESPACE"
"""Variable with the id of the process whose namespaces a component enters."""

_UNSHARED = b"\n"
"""What the process writes once it has namespaces; anything else is an error."""

MapGroup = Callable[[int], bool]
"""Maps the group of a process's user namespace so that its other groups can be dropped."""


def _map_none(_: int) -> bool:
    return False


def missing_support() -> str:
    """Return what this machine lacks for the namespace of a normal user; empty if nothing."""
    for program, package in _PACKAGES:
        if find_program(program) is None:
            return f"the program {program} is missing (Debian's package {package})"
    if not os.access(_TUN, os.R_OK | os.W_OK):
        return f"{_TUN} cannot be opened, which pasta needs (usually everyone may)"
    try:
        process = _fork_holder()
    except OSError as error:
        return f"the kernel does not permit it: {error.strerror or error}"
    _kill(process)
    return ""


def find_program(name: str) -> str | None:
    """Return the path of a program of the system, which users other than root may not search for.

    Debian's PATH of normal users has no directories for administrators, and the programs are there.
    """
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), *SYSTEM_PROGRAMS))
    return shutil.which(name, path=path)


class NodeNamespace:
    """The namespace, as long as its supervisor runs."""

    def __init__(self, *, map_group: MapGroup) -> None:
        """Create it.

        Raises:
            OSError: that is not possible.
        """
        self.holder = _fork_holder(map_group)
        """Id of the process in it that its members look up."""

    def close(self) -> None:
        """Remove it, once no other process is in it."""
        _kill(self.holder)


def execute_pasta(holder: int, *, api_port: int, ready: int) -> NoReturn:
    """Become pasta, which connects the namespace of *holder* to the network of the machine.

    It writes its id to the descriptor *ready* once that is done.

    Raises:
        OSError: there is no such program.
    """
    os.set_inheritable(ready, True)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # it takes an ignored one for an error
    arguments = [
        *("pasta", "--foreground", "--quiet", "--config-net", "--ipv4-only", "--no-map-gw"),
        *("--tcp-ports", "none", "--udp-ports", "none", "--udp-ns", "none"),
        *("--tcp-ns", str(api_port), "--pid", f"/proc/self/fd/{ready}"),
        *("--netns", f"/proc/{holder}/ns/net", "--userns", f"/proc/{holder}/ns/user"),
    ]
    program = find_program(arguments[0]) or arguments[0]
    os.execvp(program, arguments)  # noqa: S606 - a program that is named here


def _fork_holder(map_group: MapGroup = _map_none) -> int:
    """Fork a process with new namespaces, which ends with this one; return its id.

    Raises:
        OSError: the kernel does not permit it.
    """
    user, group, parent = os.geteuid(), os.getegid(), os.getpid()
    read, write = os.pipe()
    mapped, map_end = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            os.setsid()  # Ctrl-C ends the cluster in order
            os.close(map_end)
            _check(_LIBC.unshare(_NEW_USER | _NEW_NET | _NEW_NS), "user namespaces")
            Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
            os.write(write, _UNSHARED)
            if os.read(mapped, 1) == b"0":
                Path("/proc/self/setgroups").write_text("deny")
                Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
            _check(_LIBC.mount(None, b"/", None, _MS_REC | _MS_SLAVE, None), "mount")
            _check(_LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")
            os.set_inheritable(write, False)  # closed by the execution, which is the signal
            if os.getppid() == parent:
                os.execvp("sleep", ["sleep", "infinity"])  # noqa: S606, S607 - no shell
        except OSError as error:
            os.write(write, (error.strerror or str(error)).encode())
        finally:
            os._exit(1)
    os.close(write)
    os.close(mapped)
    with open(read, "rb", buffering=0) as errors, open(map_end, "wb", buffering=0) as reply:
        message = errors.read(1)
        if message == _UNSHARED:
            reply.write(b"1" if map_group(process) else b"0")
            message = b""
        message += errors.readall()
    if message:
        os.waitpid(process, 0)
        raise OSError(message.decode())
    return process


def _kill(process: int) -> None:
    os.kill(process, signal.SIGKILL)
    with suppress(ChildProcessError):
        os.waitpid(process, 0)


_entered = False
_machine: socket.socket | None = None
"""Connection to the process that listens on the machine for this one."""


def is_entered() -> bool:
    """Return whether this process is in the namespace of a node."""
    return _entered


def enter(holder: int) -> None:
    """Enter the namespaces of *holder*; this process must have one thread.

    Raises:
        OSError: it has exited.
    """
    global _entered, _machine
    directory = os.getcwd()
    _machine = _fork_listener()
    opened = [
        (os.open(f"/proc/{holder}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC), kind)
        for name, kind in _NAMESPACES
    ]
    for descriptor, kind in opened:
        _check(_LIBC.setns(descriptor, kind), "cannot enter the namespace of the node")
        os.close(descriptor)
    os.chdir(directory)
    with suppress(PermissionError):  # where the group could not be mapped
        os.setgroups([])
    # Else what is below /proc/self belongs to root.
    _check(_LIBC.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0), "prctl")
    header = struct.pack("Ii", _CAPABILITY_VERSION, 0)
    current = ctypes.create_string_buffer(24)
    _check(_LIBC.capget(header, current), "capget")
    sets = list(struct.unpack("6I", current.raw))
    sets[2] |= sum(1 << each for each in _PASSED)  # inheritable, which `passing_rights` requires
    _check(_LIBC.capset(header, struct.pack("6I", *sets)), "capset")
    _entered = True


def _fork_listener() -> socket.socket:
    """Fork a process that stays outside of the namespace, and ends with this one."""
    own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork():
        other.close()
        return own
    try:
        own.close()
        os.closerange(3, other.fileno())
        os.closerange(other.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
        while request := other.recv(_MESSAGE):
            protocol, host, port, backlog = request.decode().split()
            address = host, int(port)
            try:
                with (
                    socket.create_server(address, backlog=int(backlog))
                    if protocol == "tcp"
                    else bind_datagrams(address)
                ) as opened:
                    socket.send_fds(other, [b"0"], [opened.fileno()])
            except OSError as error:
                other.send(str(error.errno or errno.EINVAL).encode())
    finally:
        os._exit(0)


def listen_on_machine(address: tuple[str, int], *, backlog: int) -> socket.socket:
    """Listen on an address of the machine, also if this process is in the namespace of a node.

    Raises:
        OSError: the address is in use, or the port is privileged.
    """
    if _machine is None:
        return socket.create_server(address, backlog=backlog)
    return _opened_on_machine(_machine, "tcp", address, backlog=backlog)


def bind_datagrams(address: tuple[str, int]) -> socket.socket:
    """Return a UDP socket with *address*.

    Raises:
        OSError: the address is in use, or the port is privileged.
    """
    created = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        created.bind(address)
    except BaseException:
        created.close()
        raise
    return created


def bind_datagrams_on_machine(address: tuple[str, int]) -> socket.socket:
    """Return a UDP socket of the machine, also if this process is in the namespace of a node.

    Raises:
        OSError: the address is in use, or the port is privileged.
    """
    if _machine is None:
        return bind_datagrams(address)
    return _opened_on_machine(_machine, "udp", address)


def _opened_on_machine(
    machine: socket.socket, protocol: str, address: tuple[str, int], *, backlog: int = 0
) -> socket.socket:
    host, port = address
    machine.send(f"{protocol} {host} {port} {backlog}".encode())
    reply, descriptors, _, _ = socket.recv_fds(machine, _MESSAGE, 1)
    if not descriptors:
        number = int(reply or errno.EPIPE)
        raise OSError(number, os.strerror(number))
    return socket.socket(fileno=descriptors[0])


@contextmanager
def passing_rights() -> Iterator[None]:
    """Let programs that this thread starts in the block change the network of the node.

    Without it, executing a program takes away all capabilities, as the user is not root. To be used
    only for `ip`, `nft`, and programs of the agent, which drop the capabilities before they execute
    anything else.
    """
    if not _entered:
        yield
        return
    for capability in _PASSED:
        _check(_LIBC.prctl(_PR_CAP_AMBIENT, _AMBIENT_RAISE, capability, 0, 0), "prctl")
    try:
        yield
    finally:
        _check(_LIBC.prctl(_PR_CAP_AMBIENT, _AMBIENT_CLEAR_ALL, 0, 0, 0), "prctl")


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
