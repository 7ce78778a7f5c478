"""Files and directories that other users must not control, checked by descriptor after opening.

A file opened without following links and then checked by its descriptor cannot be exchanged between
check and use. The rules:

* a private file or directory (`open_private`, `open_private_dir`) is no symbolic link, belongs to
  the effective user (also for root: another user may have prepared the content of a directory of
  theirs) and has no permission for others;
* a credential file that an administrator names (`read_credential`) may also belong to root, and
  may be a link as in a Kubernetes volume;
* parent directories may belong to any user, but must not be world-writable without the sticky bit.
  Group permissions are the administrator's decision.
"""

import errno
import os
import pwd
import stat
from contextlib import suppress
from pathlib import Path

from .errors import UnsafePathError

GROUP_OTHER_ACCESS = 0o077
"""Permissions of group and others."""
GROUP_OTHER_WRITE = 0o022
"""Write permissions of group and others."""

_SAFE_OPEN_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
"""Non-blocking: opening a FIFO would otherwise block forever."""
_VOLUME_LINK = "..data"
"""Directory link that the files of a Kubernetes volume point through."""
_SECRET_MOUNTS = ("/run/secrets/", "/var/run/secrets/")
"""Where container runtimes mount secrets for all users of a container."""


def open_private(
    path: Path,
    flags: int = os.O_RDONLY,
    *,
    forbidden: int = GROUP_OTHER_ACCESS,
) -> int:
    """Open a private file, with O_CREAT in *flags* create it with mode 0600; return its descriptor.

    Args:
        path: path of the file.
        flags: for `os.open`. Truncate by the descriptor, not by O_TRUNC: the check must precede it.
        forbidden: permission bits for which the file is unsafe.

    Raises:
        UnsafePathError: it is a link or no regular file, or accessible to another user.
        OSError: it cannot be opened.
    """
    try:
        descriptor = os.open(path, flags | _SAFE_OPEN_FLAGS, 0o600)
    except OSError as error:
        raise _explain_error(path, error) from None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise UnsafePathError(path, "it is no regular file", f"remove {path}")
        check_owner(path, found)
        check_mode(path, found, forbidden=forbidden)
        os.set_blocking(descriptor, True)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_private(path: Path, *, forbidden: int = GROUP_OTHER_ACCESS) -> bytes:
    """Read a private file; raises as `open_private`."""
    with os.fdopen(open_private(path, forbidden=forbidden), "rb") as file:
        return file.read()


def write_private(path: Path, data: bytes) -> None:
    """Replace the content of *path* (mode 0600) atomically; needs no space if it is the same.

    Raises:
        UnsafePathError: other users may access the existing file.
        OSError: it cannot be written.
    """
    with suppress(FileNotFoundError):
        if read_private(path) == data:
            return
    draft = path.with_name(f".{path.name}.new")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def open_private_dir(path: Path) -> int:
    """Open a private directory and return its descriptor; the caller checks its mode.

    Raises:
        UnsafePathError: it is a link or another user's, or any user may replace it.
        OSError: it is no directory, or cannot be opened.
    """
    _check_parents(path)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | _SAFE_OPEN_FLAGS)
    except OSError as error:
        raise _explain_error(path, error) from None
    try:
        check_owner(path, os.fstat(descriptor))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def ensure_private_dir(path: Path, *, forbidden: int = GROUP_OTHER_ACCESS) -> None:
    """Create a private directory or reuse an existing one; its mode is 0700 afterwards.

    An empty directory may have had any mode: it has no content that another user prepared.

    ~

    One that is empty may have had any mode: nothing was prepared in it.

    Raises:
        UnsafePathError: as `open_private_dir`, or it has *forbidden* permissions.
        OSError: it cannot be created or opened.
    """
    with suppress(FileExistsError):  # checked below
        path.mkdir(mode=0o700, parents=True)
    descriptor = open_private_dir(path)
    try:
        found = os.fstat(descriptor)
        if found.st_mode & GROUP_OTHER_ACCESS:
            if os.listdir(descriptor):
                check_mode(path, found, forbidden=forbidden)
            os.fchmod(descriptor, 0o700)
    finally:
        os.close(descriptor)


def read_credential(path: Path) -> bytes:
    """Read a token or key that an administrator names.

    Raises:
        UnsafePathError: another user may have created it, or others may read it.
        OSError: it cannot be read.
    """
    linked = path.is_symlink() and os.readlink(path).split("/")[0] == _VOLUME_LINK
    flags = _SAFE_OPEN_FLAGS & ~os.O_NOFOLLOW if linked else _SAFE_OPEN_FLAGS
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        raise _explain_error(path, error) from None
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise UnsafePathError(path, "it is no regular file", "name a file")
        check_owner(path, found, allow_root=True)
        mounted = linked or str(path).startswith(_SECRET_MOUNTS)
        shared = mounted or found.st_uid != os.geteuid()  # root may grant it to a group
        check_mode(path, found, forbidden=GROUP_OTHER_WRITE if shared else GROUP_OTHER_ACCESS)
        return file.read()


def check_owner(path: Path, found: os.stat_result, *, allow_root: bool = False) -> None:
    """Raise UnsafePathError unless *found*, at *path*, belongs to the effective user."""
    own = os.geteuid()
    if found.st_uid == own or (allow_root and found.st_uid == 0):
        return
    owner, user = _user_name(found.st_uid), _user_name(own)
    raise UnsafePathError(
        path,
        f"it belongs to {owner}, not to {user}",
        f"run as {owner}, name another path, or `chown -R {user} {path}` if its content is trusted",
    )


def check_mode(path: Path, found: os.stat_result, *, forbidden: int = GROUP_OTHER_ACCESS) -> None:
    """Raise UnsafePathError if *found*, at *path*, has *forbidden* permissions."""
    if not found.st_mode & forbidden:
        return
    mode = stat.S_IMODE(found.st_mode)
    what = "change" if mode & GROUP_OTHER_WRITE else "read"
    right = "700" if stat.S_ISDIR(found.st_mode) else "600"
    raise UnsafePathError(
        path,
        f"its mode {mode:04o} lets other users {what} it",
        f"`chmod {right} {path}` if its content is trusted",
    )


def _check_parents(path: Path) -> None:
    """Raise unless every parent is safe from renames, checked from the root downwards."""
    for parent in reversed(Path(os.path.realpath(path.parent)).joinpath("_").parents):
        found = parent.stat()
        if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
            raise UnsafePathError(
                path,
                f"every user may rename what is in {parent}",
                f"`chmod o-w {parent}`, or `chmod +t {parent}`",
            )


def _explain_error(path: Path, error: OSError) -> OSError:
    """Return a clearer error; an unfollowed link gives ELOOP, or ENOTDIR for a directory."""
    if error.errno in (errno.ELOOP, errno.ENOTDIR) and path.is_symlink():
        return UnsafePathError(
            path, "it is a symbolic link", "name what it points to, or remove it"
        )
    if error.errno == errno.EACCES:
        try:
            check_owner(path, path.lstat())
        except OSError as better:
            return better
    return error


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
