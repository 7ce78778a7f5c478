"""Supplementary groups of the agent's user, which containers should not have.

Imported by `mounting`, so it imports no other module of Batholith.
"""

import os
import pwd
from collections.abc import Callable

_NEWGIDMAP = "/usr/bin/newgidmap"


def supplementary() -> set[int]:
    """Return the groups of this process that are not its own one."""
    return set(os.getgroups()) - {os.getegid()}


def can_drop() -> bool:
    """Return whether this user can leave its supplementary groups.

    The kernel permits it to root, and to others only in a user namespace whose groups the program
    newgidmap has mapped, which requires a range of subordinate group ids.
    """
    return os.geteuid() == 0 or (os.access(_NEWGIDMAP, os.X_OK) and _subordinate_gid() is not None)


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


def fork_newgidmap(inner: int, gid: int) -> Callable[[], None]:
    """Fork a process outside the next namespaces; the returned function has it map the groups.

    *inner* is the id of the group *gid* inside. A subordinate id is mapped too, because newgidmap
    otherwise forbids changes of the groups. The function raises OSError if newgidmap fails.
    """
    spare = inner + 1
    arguments = [_NEWGIDMAP, str(os.getpid()), str(inner), str(gid), "1"]
    arguments += [str(spare), str(_subordinate_gid()), "1"]
    wake, waker = os.pipe()
    helper = os.fork()
    if helper == 0:
        try:
            os.close(waker)
            if os.read(wake, 1):
                os.execv(_NEWGIDMAP, arguments)  # noqa: S606 - no shell on purpose
        finally:
            os._exit(1)
    os.close(wake)

    def map_groups() -> None:
        os.write(waker, b"x")
        os.close(waker)
        if os.waitpid(helper, 0)[1]:
            raise OSError("newgidmap cannot map the group")

    return map_groups
