"""System calls of a sandbox: namespaces, mounts, user ids, race-free path resolution.

Imported by the programs that run outside the agent process (`shim`, `nsenter`), so of Batholith it
imports only `groups` and `forking`. A path that a pod can influence is resolved only once, beneath
a directory of the agent, and the resulting descriptor is what gets mounted or read.
"""

import ctypes
import errno
import os
import stat
import struct
from collections.abc import Callable, Iterable, Sequence

if __package__:
    from . import groups
    from .forking import Helper
else:
    import groups  # type: ignore[import-not-found, no-redef]
    from forking import Helper  # type: ignore[import-not-found, no-redef]

NEW_NS, NEW_UTS, NEW_IPC, NEW_USER, NEW_PID, NEW_NET = (
    0x00020000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000,
)  # fmt: skip
ID_RANGE_SIZE = 1 << 16
"""Number of user ids of a pod."""

KEPT_CAPABILITIES = frozenset({0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 27, 29, 31})
_LAST_CAPABILITY = 63
_CAP_KILL, _CAP_WAKE_ALARM = 5, 35
_CAPABILITY_VERSION = 0x20080522

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 24, 38
_BIND, _REC, _PRIVATE, _REMOUNT = 4096, 16384, 1 << 18, 32
_RDONLY, _NOSUID, _NODEV, _NOEXEC = 1, 2, 4, 8
KEPT_FLAGS = _NOSUID | _NODEV | _NOEXEC | 1024 | 2048  # plus noatime, nodiratime
_MNT_DETACH = 2
_SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_SYS_KEYCTL = {"x86_64": 250, "aarch64": 219}
SYS_OPENAT2, SYS_MOUNT_SETATTR = 437, 442  # the same on every architecture
_AT_RECURSIVE, _AT_FDCWD = 0x8000, -100
_NO_MAGIC_LINKS, _NO_LINKS, _BENEATH, _IN_ROOT = 0x02, 0x04, 0x08, 0x10
NEXT_SUB_PATH = "\0"
"""Separates the sub-paths of a mount, each of which must not lead out of the one before."""

_MAX_ATTEMPTS = 100
"""Path resolutions that may fail because of a concurrent rename."""

HIDDEN_MODE = "700"
"""Mode of a tmpfs that only hides what is on the host."""

HIDDEN_SIZE = 4096
_BYTES_PER_INODE, _MIN_INODES = 16384, 1024
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "fuse")
READ_ONLY_PROC_PATHS = ("sys", "sysrq-trigger", "irq", "bus", "fs")
"""Entries of /proc that change the whole machine."""


class CannotStartError(Exception):
    """The container's main process cannot be started; the text is for its status."""


class HostChangedError(CannotStartError):
    """A directory of the host changed after the root was planned; another plan may succeed."""


# --- paths ----------------------------------------------------------------------------------


def open_beneath(dir_fd: int, path: str) -> int:
    """Return an O_PATH descriptor of the relative *path* below an open directory.

    Raises:
        OSError: it does not exist (ENOENT), or is outside the directory (EXDEV, ELOOP).
    """
    return _openat2(dir_fd, path, _BENEATH)


def open_in_root(root: int, path: str) -> int:
    """Return an O_PATH descriptor of *path* in the tree open as *root*, with links as seen there.

    Raises:
        OSError: it does not exist.
    """
    return _openat2(root, path.lstrip("/") or ".", _IN_ROOT)


def _openat2(dir_fd: int, path: str, how: int) -> int:
    flags = os.O_PATH | os.O_CLOEXEC
    open_how = struct.pack("QQQ", flags, 0, how | _NO_MAGIC_LINKS)
    for _ in range(_MAX_ATTEMPTS):
        result: int = _LIBC.syscall(SYS_OPENAT2, dir_fd, os.fsencode(path), open_how, len(open_how))
        if result >= 0:
            return result
        number = ctypes.get_errno()
        if number in (errno.ENOSYS, errno.EPERM):  # before Linux 5.6, or an old seccomp filter
            return _walk(dir_fd, path)
        if number != errno.EAGAIN:
            raise OSError(number, os.strerror(number), path)
    raise OSError(errno.EXDEV, "path changed during its resolution", path)


def _walk(dir_fd: int, path: str) -> int:
    """`open_beneath` without openat2: follow no links at all."""
    current = os.dup(dir_fd)
    for name in _components(path):
        try:
            if name == "..":
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
            below = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=current)
        finally:
            os.close(current)
        current = below
        if stat.S_ISLNK(os.fstat(current).st_mode):
            os.close(current)
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
    return current


def _components(path: str) -> list[str]:
    return [name for name in path.split("/") if name not in ("", ".")]


def open_regular(path: str, flags: int = os.O_RDONLY) -> int:
    """Open a regular file; a pod may have replaced it by a link or a pipe.

    Raises:
        OSError: it does not exist, or is not a regular file.
    """
    opened = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise OSError(errno.EINVAL, "not a regular file", path)
    return opened


def open_within(directory: str, path: str) -> int:
    """Return a descriptor of *path* below *directory*.

    Raises:
        OSError: it does not exist, or is outside of it.
    """
    top = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    if not path:
        return top
    try:
        return open_beneath(top, path)
    finally:
        os.close(top)


def mkdir_beneath(
    directory: str, path: str, *, within: str = "", mode: int, owner: int | None
) -> None:
    """Create the directory *path* below *within*, a path in *directory*, unless it exists.

    *owner* is user and group.

    Raises:
        OSError: it is outside of that, or cannot be created.
    """
    top = open_within(directory, within)
    above = os.dup(top)
    try:
        names = _components(path)
        for number, name in enumerate(names, 1):
            try:
                below = open_beneath(top, "/".join(names[:number]))
            except FileNotFoundError:
                below = _mkdir(above, name, mode=mode, owner=owner)
            os.close(above)
            above = below
    finally:
        os.close(above)
        os.close(top)


def _mkdir(parent_fd: int, name: str, *, mode: int, owner: int | None) -> int:
    os.mkdir(name, 0o700, dir_fd=parent_fd)
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    created = os.open(name, flags, dir_fd=parent_fd)
    if owner is not None:
        os.fchown(created, owner, owner)
    os.fchmod(created, mode)
    return created


def mount_point(root: int, path: str, *, is_dir: bool) -> int:
    """Return a descriptor of *path* in the tree below *root*, created if it does not exist.

    Links are followed as in the container, and never out of the tree.
    """
    names = _components(path)
    above = os.dup(root)
    for number, name in enumerate(names, 1):
        try:
            below = open_in_root(root, "/".join(names[:number]))
        except FileNotFoundError:
            if is_dir or number < len(names):
                below = _mkdir(above, name, mode=0o755, owner=None)
            else:
                flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
                below = os.open(name, flags, 0o644, dir_fd=above)
        os.close(above)
        above = below
    return above


# --- user ids and capabilities --------------------------------------------------------------


def unshare(flags: int, user: tuple[int, int] | None = None) -> None:
    """Move to new namespaces; in a new user namespace, map *user* (and group) to this user.

    In a new user namespace the process has no supplementary groups, if it can drop them (`groups`).

    Raises:
        CannotStartError: the kernel does not permit it.
    """
    uid, gid = os.geteuid(), os.getegid()
    inner = (uid, gid) if user is None else user
    drop_groups = groups.prepare_drop(inner[1]) if flags & NEW_USER else None
    check_syscall(_LIBC.unshare(flags), "unshare")
    if flags & NEW_USER:
        if drop_groups is None or not drop_groups():
            write_proc_file("/proc/self/setgroups", "deny")
            write_proc_file("/proc/self/gid_map", f"{inner[1]} {gid} 1")
        write_proc_file("/proc/self/uid_map", f"{inner[0]} {uid} 1")


def set_namespaces(process: int, namespaces: int) -> None:
    """Enter *namespaces* of a process, which is open as a pidfd, or one that is open as a file.

    Raises:
        CannotStartError: the process has exited, or the kernel does not permit it.
    """
    check_syscall(_LIBC.setns(process, namespaces), "setns")


def drops_groups() -> bool:
    """Return whether containers are free of this process's supplementary groups."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            unshare(NEW_USER)
            code = 1 if groups.supplementary() else 0
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1] == 0


def lacks_sandbox_support() -> bool:
    """Return whether this machine permits no namespaces at all: a quick check, not a full run."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            unshare(NEW_NS if os.geteuid() == 0 else NEW_USER)
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1] != 0


def enter_id_range(base: int, *tasks: Callable[[], object]) -> Helper:
    """Enter a user namespace with the ids from *base* on; return a helper outside, for *tasks*.

    Raises:
        CannotStartError: the kernel does not permit it.
    """
    # By descriptor: this process has a different pid in the /proc of the outer pid namespace.
    me = os.open("/proc/self", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    def write_maps() -> None:
        for name in ("uid_map", "gid_map"):
            target = os.open(name, os.O_WRONLY, dir_fd=me)
            os.write(target, f"0 {base} {ID_RANGE_SIZE}".encode())

    helper = Helper(write_maps, *tasks)
    os.close(me)
    check_syscall(_LIBC.unshare(NEW_USER), "unshare")
    if not helper.run():
        raise CannotStartError("cannot map the pod's range of user ids")
    return helper


def drop_privileges(ids: dict, bounding: Iterable[int]) -> None:  # type: ignore[type-arg]
    """Switch to the container's user with the bounding set *bounding*, without other privileges.

    *ids* are those of `launch.json`. Only system calls: nothing is imported or opened, because the
    file system may be the pod's.
    """
    user, base = ids["user"], ids["base"]
    kept = frozenset(bounding)
    for capability in range(_LAST_CAPABILITY + 1):
        if capability not in kept:
            _LIBC.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
    set_no_new_privs()
    if base is not None:
        first = 0 if ids["namespace"] else base
        os.setgroups([])
        os.setresgid(*[first + user[1]] * 3)
        os.setresuid(*[first + user[0]] * 3)
    # The kernel takes them away when a program is executed, but not from the sandbox's init.
    in_namespace = base is None or ids["namespace"]
    effective = kept | {_CAP_KILL} if in_namespace and user[0] == 0 else frozenset()
    # A process may trace those whose permitted capabilities it has; no container has this one.
    set_capabilities(effective, unused=[_CAP_WAKE_ALARM] if in_namespace else [])


def set_capabilities(effective: Iterable[int], *, unused: Iterable[int]) -> None:
    """Set the effective capabilities; *unused* ones are permitted, too."""
    mask = sum(1 << number for number in effective)
    permitted = mask | sum(1 << number for number in unused)
    header = struct.pack("Ii", _CAPABILITY_VERSION, 0)
    halves = [each >> shift & 0xFFFFFFFF for shift in (0, 32) for each in (mask, permitted, 0)]
    check_syscall(_LIBC.capset(header, struct.pack("6I", *halves)), "capset")


def set_no_new_privs() -> None:
    """Keep programs executed from here on from gaining privileges (set-user-ID and the like)."""
    check_syscall(_LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")


def join_session_keyring() -> None:
    """Join a new session keyring: the old one holds keys of the user that started the agent."""
    number = _SYS_KEYCTL.get(os.uname().machine)
    if number is not None:  # fails only in a kernel without keyrings
        _LIBC.syscall(number, 1, None)


# --- mounts ---------------------------------------------------------------------------------


def mount(
    source: str | None, target: str, kind: str | None, flags: int, data: str | None = None
) -> None:
    """Call mount(2).

    Raises:
        CannotStartError: the call failed.
    """
    result = _LIBC.mount(
        os.fsencode(source) if source else None,
        os.fsencode(target),
        kind.encode() if kind else None,
        ctypes.c_ulong(flags),
        data.encode() if data else None,
    )
    check_syscall(result, f"mount {target}")


def detach_mounts() -> None:
    """Keep mounts of this process's mount namespace from appearing in others."""
    mount(None, "/", None, _REC | _PRIVATE)


def build_root(
    root: str, steps: Iterable[Sequence[str]], *, owner: int | None, tmpfs_size: int
) -> None:
    """Build a container's root at the directory *root*, in this process's own mount namespace.

    *owner* owns the new directories; without it, this process's user does. Each tmpfs has at most
    *tmpfs_size* bytes.

    The pod's mounts are the last steps but sealing. Only they are mounted below directories of
    volumes, in which a pod may have put links; so paths of all other steps are safe.
    """
    detach_mounts()
    mount_tmpfs(root, mode="755", size=tmpfs_size, owner=owner)
    top = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    for kind, source, path, sub_path in steps:
        if kind == "seal":
            set_read_only(root + path, recursive=False)
        elif kind == "link":
            _create_dirs(os.path.dirname(root + path))
            os.symlink(source, root + path)
        elif kind == "show":
            _show(top, source, path)
        elif kind == "hide":
            if os.path.lexists(root + path):
                bind_mount(top, os.devnull, path, read_only=True)
        elif kind == "tmpfs":
            _create_dirs(root + path)
            mount_tmpfs(root + path, mode=source, size=tmpfs_size, owner=owner)
        elif kind == "dev":
            mount_devices(root, tmpfs_size)
        elif kind == "proc":
            mount_proc(root)
        else:
            bind_mount(top, source, path, sub_path=sub_path, read_only=kind == "ro")
    os.close(top)


def mount_tmpfs(target: str, *, mode: str, size: int, owner: int | None) -> None:
    """Mount a new tmpfs of *size* bytes, whose root belongs to *owner*."""
    if mode == HIDDEN_MODE:
        size = HIDDEN_SIZE
    options = f"mode={mode},size={size},nr_inodes={size // _BYTES_PER_INODE + _MIN_INODES}"
    if owner is not None:
        options += f",uid={owner},gid={owner}"
    mount("tmpfs", target, "tmpfs", _NOSUID | _NODEV, options)


def _create_dirs(path: str) -> None:
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:  # it was on the host, which is mounted read-only
        raise HostChangedError(f"mount point {path}: {error.strerror}") from error


def _show(root: int, source: str, path: str) -> None:
    """Show *source*, a path of the host without links, at *path*; nothing if it was removed."""
    top = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        opened = _openat2(top, source.lstrip("/"), _BENEATH | _NO_LINKS)
    except OSError:
        return
    finally:
        os.close(top)
    try:
        _mount_opened(root, opened, path)
    except CannotStartError:
        if os.fstat(opened).st_nlink > 0:
            raise
        return  # removed after it was opened
    finally:
        os.close(opened)
    _set_path_read_only(root, path)


def bind_mount(root: int, source: str, path: str, *, sub_path: str = "", read_only: bool) -> None:
    """Bind-mount *source*, or *sub_path* below it, at *path* in the tree open as *root*.

    The sub-path may be several ones, each below the one before, separated by `NEXT_SUB_PATH`.

    Raises:
        CannotStartError: a sub-path leads out of its volume; HostChangedError: no mount point.
    """
    opened = os.open(source, os.O_PATH | os.O_CLOEXEC)
    for each in filter(None, sub_path.split(NEXT_SUB_PATH)):
        volume, opened = opened, _open_sub_path(opened, each)
        os.close(volume)
    _mount_opened(root, opened, path)
    os.close(opened)
    if read_only:
        _set_path_read_only(root, path)


def _mount_opened(root: int, opened: int, path: str) -> None:
    try:
        target = mount_point(root, path, is_dir=stat.S_ISDIR(os.fstat(opened).st_mode))
    except OSError as error:
        raise HostChangedError(f"mount point {path}: {error.strerror}") from error
    try:
        mount(f"/proc/self/fd/{opened}", f"/proc/self/fd/{target}", None, _BIND | _REC)
    finally:
        os.close(target)


def _set_path_read_only(root: int, path: str) -> None:
    # Resolved again: the descriptor of the mount point is of the directory that is now covered.
    covering = open_in_root(root, path)
    set_read_only(f"/proc/self/fd/{covering}")
    os.close(covering)


def _open_sub_path(volume: int, path: str) -> int:
    try:
        return open_beneath(volume, path)
    except OSError as error:
        raise CannotStartError(f"subPath {path!r}: {error.strerror}") from error


def stage(directory: str, steps: Iterable[Sequence[str]]) -> None:
    """Mount in *directory* what another program cannot resolve safely, for it to bind-mount.

    The steps' paths are relative to *directory*, on which a new tmpfs is mounted.
    """
    detach_mounts()
    mount("tmpfs", directory, "tmpfs", _NOSUID | _NODEV, "mode=755")
    for kind, source, path, sub_path in steps:
        if kind == "tmpfs":
            _create_dirs(os.path.join(directory, path))
            mount("tmpfs", os.path.join(directory, path), "tmpfs", _NOSUID | _NODEV, "mode=755")
            continue
        if kind == "link":
            _create_dirs(os.path.dirname(os.path.join(directory, path)))
            os.symlink(source, os.path.join(directory, path))
            continue
        number, _, rest = path.partition("/")
        # Relative to the outer mount's root: a link in a volume must not lead out of it.
        base = os.path.join(directory, number) if rest else directory
        root = os.open(base, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        if kind == "show":
            _show(root, source, rest)
        else:
            bind_mount(root, source, rest or number, sub_path=sub_path, read_only=kind == "ro")
        os.close(root)


def set_read_only(target: str, *, recursive: bool = True) -> None:
    """Set the mount at *target* and those below it read-only."""
    attributes = struct.pack("QQQQ", _RDONLY, 0, 0, 0)
    flags = _AT_RECURSIVE if recursive else 0
    result = _LIBC.syscall(
        SYS_MOUNT_SETATTR, _AT_FDCWD, os.fsencode(target), flags, attributes, len(attributes)
    )
    if result == 0:
        return
    if ctypes.get_errno() not in (errno.ENOSYS, errno.EPERM):
        check_syscall(result, f"mount_setattr {target}")
    # Before Linux 5.12: one by one, keeping the flags that may not be cleared.
    real = os.path.realpath(target)
    for path in _mounts_at(real) if recursive else [real]:
        kept = os.statvfs(path).f_flag & KEPT_FLAGS
        mount(None, path, None, _BIND | _REMOUNT | _RDONLY | kept)


def _mounts_at(path: str) -> list[str]:
    """Return the mounts at and below *path*."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        found = [line.split()[4].replace(r"\040", " ") for line in file]
    return [one for one in found if one == path or one.startswith(f"{path}/")]


def mount_devices(root: str, tmpfs_size: int) -> None:
    """Fill the directory /dev of *root*, in which there are no links."""
    shared = root + "/dev/shm"  # noqa: S108 - the container's own
    os.makedirs(shared, exist_ok=True)
    mount_tmpfs(shared, mode="1777", size=tmpfs_size, owner=None)
    top = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    for name in sorted(os.listdir("/dev")):
        if name in _DEVICES:
            path = f"/dev/{name}"
            # Devices in a read-only directory can be written, but no mount point created there.
            bind_mount(top, path, path, read_only=os.path.isdir(path))
    os.close(top)
    for name, to in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        os.symlink("/proc/self/fd" + to, f"{root}/dev/{name}")
    os.symlink("/run/termination-log", f"{root}/dev/termination-log")


def mount_proc(root: str) -> None:
    """Mount /proc in *root*, which is missing or a directory there."""
    proc = root + "/proc"
    os.makedirs(proc, exist_ok=True)
    try:
        mount("proc", proc, "proc", _NOSUID | _NODEV | _NOEXEC)
    except CannotStartError:
        # The kernel denies a new proc mount where /proc is masked, as inside containers.
        mount("/proc", proc, None, _BIND | _REC)
    for name in READ_ONLY_PROC_PATHS:
        if os.path.exists(f"{proc}/{name}"):
            mount(f"{proc}/{name}", f"{proc}/{name}", None, _BIND | _REC)
            set_read_only(f"{proc}/{name}")


def pivot_root(root: str) -> None:
    """Switch to *root* as the root of this process's mount namespace.

    Raises:
        CannotStartError: the call failed, or the architecture is not supported.
    """
    number = _SYS_PIVOT_ROOT.get(os.uname().machine)
    if number is None:
        raise CannotStartError(f"no sandbox on {os.uname().machine}")
    os.chdir(root)
    check_syscall(_LIBC.syscall(number, b".", b"."), "pivot_root")
    check_syscall(_LIBC.umount2(b".", _MNT_DETACH), "umount")
    os.chdir("/")


def set_hostname(name: str) -> None:
    """Set the hostname of this UTS namespace."""
    check_syscall(_LIBC.sethostname(name.encode(), len(name.encode())), "sethostname")


def check_syscall(result: int, what: str) -> None:
    """Raise CannotStartError if a system call failed."""
    if result < 0:
        raise CannotStartError(f"{what}: {os.strerror(ctypes.get_errno())}")


def write_proc_file(path: str, text: str) -> None:
    """Write to a file of /proc; raise CannotStartError if the kernel does not permit it."""
    try:
        with open(path, "w", encoding="ascii") as file:
            file.write(text)
    except OSError as error:
        raise CannotStartError(f"{path}: {error.strerror}") from error
