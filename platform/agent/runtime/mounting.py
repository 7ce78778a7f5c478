"""The system calls behind a sandbox: namespaces, mounts, user ids, paths that cannot be swapped.

Imported by the programs that run apart from the agent (`shim`, `entering`), so it imports nothing
of ours. A path that a pod can influence is never used by its name twice: it is resolved once,
beneath a folder that is ours, and what the descriptor refers to is what gets mounted or read.
"""

import ctypes
import errno
import os
import stat
import struct
from collections.abc import Iterable, Sequence

NEW_NS, NEW_UTS, NEW_IPC, NEW_USER, NEW_PID = (
    0x00020000, 0x04000000, 0x08000000, 0x10000000, 0x20000000,
)  # fmt: skip
ID_RANGE_SIZE = 1 << 16
"""User ids of a pod, counted from 0 inside it."""

KEPT_CAPABILITIES = frozenset({0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 27, 29, 31})
_LAST_CAPABILITY = 63

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 24, 38
_BIND, _REC, _PRIVATE, _REMOUNT = 4096, 16384, 1 << 18, 32
_RDONLY, _NOSUID, _NODEV, _NOEXEC = 1, 2, 4, 8
_KEPT_FLAGS = _NOSUID | _NODEV | _NOEXEC | 1024 | 2048  # and noatime, nodiratime
_MNT_DETACH = 2
_SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_SYS_KEYCTL = {"x86_64": 250, "aarch64": 219}
_SYS_OPENAT2, _SYS_MOUNT_SETATTR = 437, 442  # the same on every architecture
_AT_RECURSIVE, _AT_FDCWD = 0x8000, -100
_NO_MAGIC_LINKS, _BENEATH, _IN_ROOT = 0x02, 0x08, 0x10
_MAX_ATTEMPTS = 100
"""Resolutions that a rename may disturb before it counts as an attack."""

_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_SPECIAL_DEVICES = ("nvidia", "dri", "kfd", "fuse")
READ_ONLY_PROC_PATHS = ("sys", "sysrq-trigger", "irq", "bus", "fs")
"""Parts of /proc that change the whole machine."""


class CannotStartError(Exception):
    """The container's main process cannot be brought up; the text is for its status."""


# --- paths ----------------------------------------------------------------------------------


def open_beneath(dir_fd: int, path: str) -> int:
    """A descriptor (O_PATH) of the relative *path* below an open folder, wherever links lead.

    Raises:
        OSError: it is not there (ENOENT), or leads out of the folder (EXDEV, ELOOP).
    """
    return _openat2(dir_fd, path, _BENEATH)


def _openat2(dir_fd: int, path: str, how: int) -> int:
    flags = os.O_PATH | os.O_CLOEXEC
    wanted = struct.pack("QQQ", flags, 0, how | _NO_MAGIC_LINKS)
    for _ in range(_MAX_ATTEMPTS):
        found: int = _LIBC.syscall(_SYS_OPENAT2, dir_fd, os.fsencode(path), wanted, len(wanted))
        if found >= 0:
            return found
        problem = ctypes.get_errno()
        if problem in (errno.ENOSYS, errno.EPERM):  # before Linux 5.6, or behind an old filter
            return _walk(dir_fd, path)
        if problem != errno.EAGAIN:
            raise OSError(problem, os.strerror(problem), path)
    raise OSError(errno.EXDEV, "it changes while it is being resolved", path)


def _walk(dir_fd: int, path: str) -> int:
    """`open_beneath` without openat2: no link is followed at all."""
    here = os.dup(dir_fd)
    for part in (part for part in path.split("/") if part not in ("", ".")):
        try:
            if part == "..":
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
            below = os.open(part, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
        finally:
            os.close(here)
        here = below
        if stat.S_ISLNK(os.fstat(here).st_mode):
            os.close(here)
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
    return here


def open_regular(path: str, flags: int = os.O_RDONLY) -> int:
    """Open a regular file: neither a link nor a pipe that somebody put in its place.

    Raises:
        OSError: there is none.
    """
    found = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    if not stat.S_ISREG(os.fstat(found).st_mode):
        os.close(found)
        raise OSError(errno.EINVAL, "not a regular file", path)
    return found


def mkdir_beneath(directory: str, path: str, *, mode: int, owner: int | None) -> None:
    """Make the folder *path* below *folder*, if nothing is there; *owner* is user and group.

    Raises:
        OSError: it leads out of the folder, or cannot be made.
    """
    top = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    above = os.dup(top)
    try:
        parts = [part for part in path.split("/") if part not in ("", ".")]
        for number, part in enumerate(parts, 1):
            try:
                below = open_beneath(top, "/".join(parts[:number]))
            except FileNotFoundError:
                below = _mkdir(above, part, mode=mode, owner=owner)
            os.close(above)
            above = below
    finally:
        os.close(above)
        os.close(top)


def _mkdir(parent_fd: int, name: str, *, mode: int, owner: int | None) -> int:
    os.mkdir(name, 0o700, dir_fd=parent_fd)
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    made = os.open(name, flags, dir_fd=parent_fd)
    if owner is not None:
        os.fchown(made, owner, owner)
    os.fchmod(made, mode)
    return made


def _mount_point(root: int, path: str, *, is_dir: bool) -> int:
    """A descriptor of *place* in the tree below *root*, made if it is not there.

    Links in it are followed as the container would follow them, and never out of the tree.
    """
    parts = [part for part in path.split("/") if part not in ("", ".")]
    above = os.dup(root)
    for number, part in enumerate(parts, 1):
        try:
            below = _openat2(root, "/".join(parts[:number]), _IN_ROOT)
        except FileNotFoundError:
            if is_dir or number < len(parts):
                below = _mkdir(above, part, mode=0o755, owner=None)
            else:
                flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
                below = os.open(part, flags, 0o644, dir_fd=above)
        os.close(above)
        above = below
    return above


# --- user ids and rights --------------------------------------------------------------------


def unshare(flags: int, user: tuple[int, int] | None = None) -> None:
    """Leave the given namespaces; in a new user namespace this user is *user* (and group).

    Raises:
        CannotStartError: the kernel does not permit it.
    """
    uid, gid = os.geteuid(), os.getegid()
    check_syscall(_LIBC.unshare(flags), "unshare")
    if flags & NEW_USER:
        shown = (uid, gid) if user is None else user
        write_proc_file("/proc/self/setgroups", "deny")
        write_proc_file("/proc/self/uid_map", f"{shown[0]} {uid} 1")
        write_proc_file("/proc/self/gid_map", f"{shown[1]} {gid} 1")


def lacks_sandbox_support() -> bool:
    """Whether this machine permits no namespaces at all: a quick look, not a trial."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            unshare(NEW_NS if os.geteuid() == 0 else NEW_USER)
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1] != 0


def enter_id_range(base: int) -> None:
    """Enter a user namespace whose ids are those of the machine from *base* on; for root.

    Raises:
        CannotStartError: the kernel does not permit it.
    """
    # By descriptor: this process has another number in the /proc of an outer pid namespace.
    me = os.open("/proc/self", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    wake, waker = os.pipe()
    helper = os.fork()
    if helper == 0:  # stays outside, where it may say what the ids of the new namespace are
        code = 1
        try:
            os.close(waker)
            if os.read(wake, 1):
                for name in ("uid_map", "gid_map"):
                    target = os.open(name, os.O_WRONLY, dir_fd=me)
                    os.write(target, f"0 {base} {ID_RANGE_SIZE}".encode())
                code = 0
        finally:
            os._exit(code)
    try:
        check_syscall(_LIBC.unshare(NEW_USER), "unshare")
        os.write(waker, b"x")
    finally:
        for end in (wake, waker, me):
            os.close(end)
        status = os.waitpid(helper, 0)[1]
    if status:
        raise CannotStartError("the pod's range of user ids is refused")


def switch_user(user: Sequence[int], *, base: int) -> None:
    """Switch to *user* (and group), counted from *base*, without other groups."""
    uid, gid = (base + number for number in user)
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


def drop_capabilities(kept: Iterable[int]) -> None:
    """Give up all capabilities but *kept*, for this process's programs and for good."""
    left = frozenset(kept)
    for capability in range(_LAST_CAPABILITY + 1):
        if capability not in left:
            _LIBC.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
    set_no_new_privs()


def set_no_new_privs() -> None:
    """Have no program that is executed from here on win rights by itself."""
    check_syscall(_LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")


def join_session_keyring() -> None:
    """Leave the session keyring, which holds keys of who started the agent."""
    number = _SYS_KEYCTL.get(os.uname().machine)
    if number is not None:  # where keys are switched off there are none to leave
        _LIBC.syscall(number, 1, None)


# --- mounts ---------------------------------------------------------------------------------


def mount(
    source: str | None, target: str, kind: str | None, flags: int, data: str | None = None
) -> None:
    """mount(2).

    Raises:
        CannotStartError: the kernel refused.
    """
    result = _LIBC.mount(
        os.fsencode(source) if source else None,
        os.fsencode(target),
        kind.encode() if kind else None,
        ctypes.c_ulong(flags),
        data.encode() if data else None,
    )
    check_syscall(result, f"mount {target}")


def build_root(root: str, steps: Iterable[Sequence[str]], *, owner: int | None) -> None:
    """Build a container's root at the folder *root*, in a mount namespace of this process's own.

    *owner* is whose the new folders are, where that is not this process's user.
    """
    mount(None, "/", None, _REC | _PRIVATE)
    whose = "" if owner is None else f",uid={owner},gid={owner}"
    mount("tmpfs", root, "tmpfs", _NOSUID | _NODEV, f"mode=755{whose}")
    top = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    sealed = []
    for kind, source, place, below in steps:
        if kind == "seal":
            sealed.append(root + place)
        elif kind == "link":
            os.symlink(source, root + place)
        elif kind == "tmpfs":
            os.makedirs(root + place, exist_ok=True)
            flags = _NOSUID | _NODEV
            mount("tmpfs", root + place, "tmpfs", flags, f"mode={source}{whose}")
        else:
            bind_mount(top, source, place, sub_path=below, read_only=kind != "rw")
    os.close(top)
    _mount_devices(root)
    _mount_proc(root)
    for place in sealed:
        _make_read_only(place, alone=True)


def bind_mount(root: int, source: str, place: str, *, sub_path: str = "", read_only: bool) -> None:
    """Show *source*, or what is *below* it, at *place* in the tree that is open as *root*."""
    held = os.open(source, os.O_PATH | os.O_CLOEXEC)
    if sub_path:
        volume, held = held, _open_sub_path(held, sub_path)
        os.close(volume)
    folder = stat.S_ISDIR(os.fstat(held).st_mode)
    target = _mount_point(root, place, is_dir=folder)
    mount(f"/proc/self/fd/{held}", f"/proc/self/fd/{target}", None, _BIND | _REC)
    os.close(target)
    os.close(held)
    if read_only:
        # Resolved anew: the descriptor was of what the mount now covers.
        covering = _openat2(root, place.lstrip("/") or ".", _IN_ROOT)
        _make_read_only(f"/proc/self/fd/{covering}")
        os.close(covering)


def _open_sub_path(volume: int, path: str) -> int:
    try:
        return open_beneath(volume, path)
    except OSError as error:
        raise CannotStartError(f"subPath {path!r}: {error.strerror}") from error


def stage(directory: str, steps: Iterable[Sequence[str]]) -> None:
    """Lay out, for another program to mount, what that program could not resolve safely.

    Each step's place is relative to *folder*, on which a new file system is mounted.
    """
    mount(None, "/", None, _REC | _PRIVATE)
    mount("tmpfs", directory, "tmpfs", _NOSUID | _NODEV, "mode=755")
    for kind, source, place, below in steps:
        number, _, rest = place.partition("/")
        where = os.path.join(directory, number)
        # Of what lies in a volume, no link may lead anywhere but into that volume.
        inner = os.open(where if rest else directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        bind_mount(inner, source, rest or number, sub_path=below, read_only=kind == "ro")
        os.close(inner)


def _make_read_only(target: str, *, alone: bool = False) -> None:
    attributes = struct.pack("QQQQ", _RDONLY, 0, 0, 0)
    flags = 0 if alone else _AT_RECURSIVE
    result = _LIBC.syscall(
        _SYS_MOUNT_SETATTR, _AT_FDCWD, os.fsencode(target), flags, attributes, len(attributes)
    )
    if result == 0:
        return
    if ctypes.get_errno() not in (errno.ENOSYS, errno.EPERM):
        check_syscall(result, f"mount_setattr {target}")
    # Before Linux 5.12: one by one, keeping the flags that may not be cleared.
    real = os.path.realpath(target)
    for place in [real] if alone else _mounts_at(real):
        kept = os.statvfs(place).f_flag & _KEPT_FLAGS
        mount(None, place, None, _BIND | _REMOUNT | _RDONLY | kept)


def _mounts_at(path: str) -> list[str]:
    """The mounts at and below *place*."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        found = [line.split()[4].replace(r"\040", " ") for line in file]
    return [one for one in found if one == path or one.startswith(f"{path}/")]


def _mount_devices(root: str) -> None:
    shared = root + "/dev/shm"  # noqa: S108 - the container's own
    os.makedirs(shared, exist_ok=True)
    mount("tmpfs", shared, "tmpfs", _NOSUID | _NODEV, "mode=1777")
    top = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    for name in sorted(os.listdir("/dev")):
        if name in _DEVICES or name.startswith(_SPECIAL_DEVICES):
            bind_mount(top, f"/dev/{name}", f"/dev/{name}", read_only=False)
    os.close(top)
    for name, to in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        os.symlink("/proc/self/fd" + to, f"{root}/dev/{name}")
    os.symlink("/run/termination-log", f"{root}/dev/termination-log")


def _mount_proc(root: str) -> None:
    place = root + "/proc"
    os.makedirs(place, exist_ok=True)
    try:
        mount("proc", place, "proc", _NOSUID | _NODEV | _NOEXEC)
    except CannotStartError:
        # Inside containers parts of /proc are covered, and a fresh one is refused.
        mount("/proc", place, None, _BIND | _REC)
    for name in READ_ONLY_PROC_PATHS:
        if os.path.exists(f"{place}/{name}"):
            mount(f"{place}/{name}", f"{place}/{name}", None, _BIND | _REC)
            _make_read_only(f"{place}/{name}")


def pivot_root(root: str) -> None:
    """Make *root* the root of this process's mount namespace.

    Raises:
        CannotStartError: the kernel refused, or is of a machine that is not known.
    """
    number = _SYS_PIVOT_ROOT.get(os.uname().machine)
    if number is None:
        raise CannotStartError(f"no sandbox on {os.uname().machine}")
    os.chdir(root)
    check_syscall(_LIBC.syscall(number, b".", b"."), "pivot_root")
    check_syscall(_LIBC.umount2(b".", _MNT_DETACH), "umount")
    os.chdir("/")


def set_hostname(name: str) -> None:
    """Name the machine, as this UTS namespace sees it."""
    check_syscall(_LIBC.sethostname(name.encode(), len(name.encode())), "sethostname")


def check_syscall(result: int, what: str) -> None:
    """Raise CannotStartError for a system call that failed."""
    if result < 0:
        raise CannotStartError(f"{what}: {os.strerror(ctypes.get_errno())}")


def write_proc_file(path: str, text: str) -> None:
    """Write into a file of /proc; raises CannotStartError if the kernel does not permit it."""
    try:
        with open(path, "w", encoding="ascii") as file:
            file.write(text)
    except OSError as error:
        raise CannotStartError(f"{path}: {error.strerror}") from error
