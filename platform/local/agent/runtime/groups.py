"""Supplementary groups of the agent's user, which containers should not have.

Imported by `mounting`, so of Batholith it imports only `forking`.
"""

import os
import pwd
from collections.abc import Callable
from contextlib import suppress

if __package__:
    from .forking import Helper
else:
    from forking import Helper  # type: ignore[import-not-found, no-redef]

_NEWGIDMAP = "/usr/bin/newgidmap"


def supplementary() -> set[int]:
    """Return the groups of this process that are not its own one."""
    return set(os.getgroups()) - {os.getegid()}


def prepare_drop(inner: int) -> Callable[[], bool] | None:
    """Prepare to drop the supplementary groups in the user namespace that is created next.

    *inner* is the id of this process's group in it. Call the result there: it maps the group and
    drops the others; `False` if that failed. ``None``: there are none, or it is impossible.

    The kernel permits it to root, and to other users only in a user namespace whose groups the
    program newgidmap has mapped, which requires a range of subordinate group ids.
    """
    if os.geteuid() == 0:
        with suppress(PermissionError):
            os.setgroups([])
        return None
    spare = _subordinate_gid()
    if not supplementary() or spare is None or not os.access(_NEWGIDMAP, os.X_OK):
        return None
    return _fork_newgidmap(inner, spare)


def map_group(process: int) -> bool:
    """Map this process's group in the user namespace of another one, which can drop others then.

    Returns whether that was possible.
    """
    spare = _subordinate_gid()
    if spare is None or not os.access(_NEWGIDMAP, os.X_OK):
        return False
    command = _arguments(process, os.getegid(), spare)
    return os.spawnv(os.P_WAIT, _NEWGIDMAP, command) == 0  # noqa: S606 - no shell


def _arguments(process: int, inner: int, subordinate: int) -> list[str]:
    """Return the command that maps a group.

    A subordinate id is mapped too, because newgidmap otherwise forbids changes of the groups.
    """
    own = [str(inner), str(os.getegid()), "1"]
    return [_NEWGIDMAP, str(process), *own, str(inner + 1), str(subordinate), "1"]


def _subordinate_gid() -> int | None:
    """Return the first subordinate group id of this user, if it has any."""
    uid = os.geteuid()
    try:
        names = {str(uid), pwd.getpwuid(uid).pw_name}
        with open("/etc/subgid", encoding="utf-8", errors="replace") as file:
            for fields in (line.strip().split(":") for line in file):
                if len(fields) == 3 and fields[0] in names and fields[1].isdigit():
                    return int(fields[1])
    except (KeyError, OSError):
        return None
    return None


def _fork_newgidmap(inner: int, subordinate: int) -> Callable[[], bool]:
    """Fork a process outside of the next user namespace, which later maps the groups."""
    arguments = _arguments(os.getpid(), inner, subordinate)
    helper = Helper(lambda: os.execv(_NEWGIDMAP, arguments))  # noqa: S606 - no shell

    def drop() -> bool:
        mapped = helper.run()
        if mapped:
            os.setgroups([])
        return mapped

    return drop
