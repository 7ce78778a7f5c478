"""The file system that a sandboxed container sees, as a list of mounts.

The root is empty; the machine's top folders are bound into it read-only, and the pod's volumes go
on top. A volume may want a place that the machine does not have (`/etc/volcano`, `/data`): then
the nearest folder that exists is *opened*, made anew with its entries bound one by one, because a
read-only mount takes no new mount points.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from . import mounting

Step = tuple[str, str, str, str]
"""Kind, source (of a tmpfs its mode), place in the root, and what of the source is meant, if not
all of it: a path that may lead anywhere, and is resolved when it is mounted.

Kinds: ``link``, ``tmpfs``; ``show`` for what is the machine's own; ``ro`` and ``rw`` for the pod's
mounts; ``seal`` makes what was made before read-only.
"""

_EXCLUDED_ROOT_DIRS = frozenset({"proc", "dev", "tmp", "run", "lost+found"})
_HOME_TOOL_DIRS = frozenset(
    {".local", ".pyenv", ".venv", ".virtualenvs", ".cargo", ".rustup", ".nvm", ".asdf", ".conda"}
)
"""What containers may see of the hidden entries of a home; the others may well hold keys."""

ROOT_HOME = "/root"


@dataclass(frozen=True, slots=True)
class Mount:
    """A file or folder of the machine, shown at a place in the container."""

    source: str
    target: str
    read_only: bool = False
    sub_path: str = ""
    """What of *source* is shown; in a volume, where its users may put links."""


def mount_plan(
    mounts: Iterable[Mount],
    *,
    hidden: Sequence[str],
    home: str,
    host: str = "/",
    tools: Sequence[str] = (),
    visible: Sequence[str] = (),
    read_only_root: bool = False,
) -> list[Step]:
    """The steps that build a container's root, to be carried out in order.

    *hidden* is shown empty, and so are hidden entries of *home* save tools. *host* is the root of
    the machine's own tree (another one in tests). The folders *tools* can be reached by every user
    of the container, even where folders above them are closed to others on the machine. The folders
    *shown* are there even where what is above them is hidden.
    """
    machine = _HostTree(host)
    wanted = sorted(
        (replace(mount, target=machine.canonical(mount.target)) for mount in mounts),
        key=lambda mount: mount.target.count("/"),
    )
    steps = [step for step in machine.bind_entries("/") if step[2][1:] not in _EXCLUDED_ROOT_DIRS]
    made = {"/tmp": "1777", "/run": "755", "/var/tmp": "1777"}  # noqa: S108 - the container's own
    steps += [
        ("tmpfs", mode, place, "") for place, mode in made.items() if machine.can_mount_at(place)
    ]
    closed = {home} if tools and machine.is_inaccessible(home) else set()
    opened = (
        {ROOT_HOME}
        | closed
        | {place for m in wanted if (place := machine.dir_to_create(m.target, made))}
    )
    for place in sorted(opened):
        steps.append(("tmpfs", "755", place, ""))
        steps += [step for step in machine.bind_entries(place) if not _is_private(step[2], home)]
    if home not in opened:
        private = (step[2] for step in machine.bind_entries(home) if _is_private(step[2], home))
        steps += (machine.hide_except(place, visible) for place in private)
    buried = [place for place in map(machine.canonical, visible) if _is_hidden(place, made, home)]
    reached = list(machine.bind_tools(tools, [*opened, *made]))
    there = {step[2] for step in reached}
    steps += reached
    steps += [("show", machine.host_path(each), each, "") for each in buried if each not in there]
    steps += [
        machine.hide_except(place)
        for place in hidden
        if not place.startswith(tuple(made)) or any(_is_below(place, each) for each in buried)
    ]
    sealed = [place for kind, _, place, _ in steps if kind == "tmpfs" and place not in hidden]
    steps += [("ro" if m.read_only else "rw", m.source, m.target, m.sub_path) for m in wanted]
    return steps + [("seal", "", place, "") for place in [*sealed, "/"] if read_only_root]


@dataclass(frozen=True, slots=True)
class _HostTree:
    """The machine's own tree, below *host*."""

    host: str

    def host_path(self, path: str) -> str:
        return os.path.normpath(self.host + "/" + path)

    def canonical(self, place: str) -> str:
        """*place* without symbolic links, as far as it exists."""
        path = os.path.realpath(self.host_path(place))
        host = os.path.realpath(self.host)
        inside = os.path.relpath(path, host)
        return "/" if inside == "." else f"/{inside}"

    def can_mount_at(self, path: str) -> bool:
        """Whether a mount at *place* finds its mount point, or can make it in the root."""
        return os.path.dirname(path) == "/" or os.path.isdir(self.host_path(path))

    def dir_to_create(self, target: str, writable: Iterable[str]) -> str | None:
        """The folder that must be made anew so that *target* can be mounted, if any."""
        parents = [str(parent) for parent in PurePosixPath(target).parents]
        if os.path.lexists(self.host_path(target)) or any(place in parents for place in writable):
            return None
        nearest = next(p for p in parents if os.path.isdir(self.host_path(p)))
        return None if nearest == "/" else nearest

    def bind_entries(self, path: str) -> Iterable[Step]:
        """Steps that show each entry of a folder, links as links."""
        try:
            found = sorted(os.scandir(self.host_path(path)), key=lambda entry: entry.name)
        except (PermissionError, FileNotFoundError):
            return
        for entry in found:
            target = os.path.join(path, entry.name)
            if entry.is_symlink():
                yield ("link", os.readlink(entry.path), target, "")
            elif entry.is_dir() or entry.is_file():
                yield ("show", entry.path, target, "")

    def bind_tools(self, tools: Iterable[str], created: Sequence[str]) -> Iterable[Step]:
        """Steps that show *tools* below folders that are closed to others."""
        emptied: set[str] = set()
        for tool in sorted(set(map(self.canonical, tools))):
            above = [str(parent) for parent in reversed(PurePosixPath(tool).parents)][1:]
            closed = next((p for p in above if p not in created and self.is_inaccessible(p)), None)
            if closed is not None:
                if closed not in emptied:
                    yield ("tmpfs", "755", closed, "")
                    emptied.add(closed)
                yield ("show", self.host_path(tool), tool, "")

    def is_inaccessible(self, path: str) -> bool:
        """Whether a folder cannot be entered by others than its owner and group."""
        return (
            os.path.isdir(self.host_path(path))
            and not os.stat(self.host_path(path)).st_mode & 0o001
        )

    def hide_except(self, path: str, visible: Iterable[str] = ()) -> Step:
        """Instead of showing *place*, hide it, save what is *shown* in it."""
        if os.path.isdir(self.host_path(path)):
            mode = "755" if any(_is_below(each, path) for each in visible) else "700"
            return ("tmpfs", mode, path, "")
        return ("show", os.devnull, path, "")


def _is_below(path: str, directory: str) -> bool:
    return f"{path}/".startswith(f"{directory}/")


def _is_hidden(directory: str, made: Iterable[str], home: str) -> bool:
    """Whether the plan hides *folder*; one that has the home in it is not shown for that."""
    if _is_below(home, directory):
        return False
    above = [str(parent) for parent in PurePosixPath(directory).parents]
    return any(place in above for place in made) or any(
        _is_private(place, home) for place in (directory, *above)
    )


def _is_private(path: str, home: str) -> bool:
    folder, _, name = path.rpartition("/")
    return folder == home and name.startswith(".") and name not in _HOME_TOOL_DIRS


def stage_plan(steps: Iterable[Step], directory: str) -> tuple[list[Step], list[Step]]:
    """What has to be laid out in *folder* for a program that mounts by path, and all its steps.

    That is what lies in a volume at a path of the pod's choice, and mounts inside other mounts:
    there a link may be put in the way. Places in the folder are a number, or below one.
    """
    every = list(steps)
    mounts = {step[2]: step for step in every if step[0] in ("ro", "rw")}
    inside = {place: above for place in mounts if (above := _containing_mount(place, mounts))}
    needed = {place for place, step in mounts.items() if step[3]} | set(inside.values())
    laid: list[Step] = []
    where: dict[str, str] = {}
    left: list[Step] = []
    for step in every:
        kind, source, place, below = step
        if mounts.get(place) is not step or not {place, inside.get(place)} & {*needed, *where}:
            left.append(step)
            continue
        above = inside.get(place)
        where[place] = f"{where[above]}{place[len(above) :]}" if above else str(len(laid))
        laid.append((kind, source, where[place], below))
        if not above:
            left.append(("rw", f"{directory}/{where[place]}", place, ""))
    return laid, left


def _containing_mount(path: str, mounts: Mapping[str, Step]) -> str | None:
    """The mount that *place* lies in, if any."""
    parents = (str(parent) for parent in PurePosixPath(path).parents)
    return next((parent for parent in parents if parent in mounts), None)


def bubblewrap_arguments(
    program: str, steps: Iterable[Step], *, hostname: str, user: tuple[int, int] | None
) -> list[str]:
    """The same root as a call of bubblewrap; ``{info}`` stands for its information pipe.

    *user* is who the container is in a user namespace of one id; without, the caller is root and
    sees to that.
    """
    argv = [program, "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--hostname", hostname]
    argv += ["--info-fd", "{info}", "--as-pid-1", "--die-with-parent"]
    if user is not None:
        argv += ["--unshare-user", "--uid", str(user[0]), "--gid", str(user[1])]
        argv += ["--cap-drop", "ALL"]
    sealed: list[str] = []
    there: dict[str, str] = {}
    for kind, source, place, _ in steps:
        for folder in _missing_parents(place, there):
            argv += ["--perms", "0755", "--dir", folder]  # by itself it makes them for root alone
            there[folder] = "tmpfs"
        if kind == "tmpfs":  # what was there is covered
            there = {each: was for each, was in there.items() if not _is_below(each, place)}
        there[place] = kind
        if kind == "tmpfs":
            argv += ["--perms", source.rjust(4, "0"), "--tmpfs", place]
        elif kind == "seal":
            sealed += ["--remount-ro", place]
        else:
            flag = {"link": "--symlink", "show": "--ro-bind", "ro": "--ro-bind", "rw": "--bind"}
            argv += [flag[kind], source, place]
    argv += ["--dev", "/dev", "--symlink", "/run/termination-log", "/dev/termination-log"]
    argv += ["--proc", "/proc"]
    for control in mounting.READ_ONLY_PROC_PATHS:
        argv += ["--ro-bind-try", f"/proc/{control}", f"/proc/{control}"]
    return [*argv, *sealed, "--chdir", "/", "--"]


def _missing_parents(path: str, existing: Mapping[str, str]) -> list[str]:
    """The folders above *place* that nothing that is *there* brings along."""
    made: list[str] = []
    for parent in PurePosixPath(path).parents:
        kind = existing.get(str(parent))
        if str(parent) == "/" or kind is not None:
            return [] if kind not in (None, "tmpfs") else made[::-1]
        made.append(str(parent))
    return made
