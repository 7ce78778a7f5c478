"""The file system that a sandboxed container sees, as a list of mounts.

The root is empty; the machine's top folders are bound into it read-only, and the pod's volumes go
on top. A volume may want a place that the machine does not have (`/etc/volcano`, `/data`): then
the nearest folder that exists is *opened*, made anew with its entries bound one by one, because a
read-only mount takes no new mount points.
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

Step = tuple[str, str, str]
"""Kind (``link``, ``tmpfs``, ``ro``, ``rw``), source (of a tmpfs its mode), place in the root."""

_MADE_ELSEWHERE = frozenset({"proc", "dev", "tmp", "run", "lost+found"})
_TOOLS = frozenset(
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


def plan(
    mounts: Iterable[Mount],
    *,
    hidden: Sequence[str],
    home: str,
    host: str = "/",
    tools: Sequence[str] = (),
) -> list[Step]:
    """The steps that build a container's root, to be carried out in order.

    *hidden* folders are shown empty, and so are hidden entries of *home* save tools. *host* is the
    root of the machine's own tree (another one in tests). The folders *tools* are shown wherever
    they lie.
    """
    machine = _Machine(host)
    wanted = sorted(
        (Mount(m.source, machine.canonical(m.target), m.read_only) for m in mounts),
        key=lambda mount: mount.target.count("/"),
    )
    steps = [step for step in machine.entries("/") if step[2][1:] not in _MADE_ELSEWHERE]
    made = {"/tmp": "1777", "/run": "755", "/var/tmp": "1777"}  # noqa: S108 - the container's own
    steps += [("tmpfs", mode, place) for place, mode in made.items() if machine.may_hold(place)]
    opened = {ROOT_HOME} | {place for m in wanted if (place := machine.to_open(m.target, made))}
    for place in sorted(opened):
        steps.append(("tmpfs", "755", place))
        steps += [step for step in machine.entries(place) if not _is_private(step[2], home)]
    if home not in opened:
        steps += [_covered(step) for step in machine.entries(home) if _is_private(step[2], home)]
    buried = [tool for tool in tools if _is_buried(tool, made, home)]
    steps += [("ro", machine.real(tool), tool) for tool in buried]
    steps += [
        ("tmpfs", "700", place)
        for place in hidden
        if not place.startswith(tuple(made)) or any(_is_below(place, tool) for tool in buried)
    ]
    steps += [("ro" if m.read_only else "rw", m.source, m.target) for m in wanted]
    return steps


@dataclass(frozen=True, slots=True)
class _Machine:
    """The machine's own tree, below *host*."""

    host: str

    def real(self, place: str) -> str:
        return os.path.normpath(self.host + "/" + place)

    def canonical(self, place: str) -> str:
        """*place* without symbolic links, as far as it exists."""
        path = os.path.realpath(self.real(place))
        host = os.path.realpath(self.host)
        inside = os.path.relpath(path, host)
        return "/" if inside == "." else f"/{inside}"

    def may_hold(self, place: str) -> bool:
        """Whether a mount at *place* finds its mount point, or can make it in the root."""
        return os.path.dirname(place) == "/" or os.path.isdir(self.real(place))

    def to_open(self, target: str, writable: Iterable[str]) -> str | None:
        """The folder that must be made anew so that *target* can be mounted, if any."""
        parents = [str(parent) for parent in PurePosixPath(target).parents]
        if os.path.lexists(self.real(target)) or any(place in parents for place in writable):
            return None
        nearest = next(p for p in parents if os.path.isdir(self.real(p)))
        return None if nearest == "/" else nearest

    def entries(self, place: str) -> Iterable[Step]:
        """Steps that show each entry of a folder, links as links."""
        try:
            found = sorted(os.scandir(self.real(place)), key=lambda entry: entry.name)
        except (PermissionError, FileNotFoundError):
            return
        for entry in found:
            target = os.path.join(place, entry.name)
            if entry.is_symlink():
                yield ("link", os.readlink(entry.path), target)
            elif entry.is_dir() or entry.is_file():
                yield ("ro", entry.path, target)


def _is_below(place: str, folder: str) -> bool:
    return f"{place}/".startswith(f"{folder}/")


def _is_buried(tool: str, made: Iterable[str], home: str) -> bool:
    """Whether the plan hides *tool*; one that has the home in it is not shown for that."""
    if _is_below(home, tool):
        return False
    above = [str(parent) for parent in PurePosixPath(tool).parents]
    return any(place in above for place in made) or any(
        _is_private(place, home) for place in (tool, *above)
    )


def _is_private(place: str, home: str) -> bool:
    folder, _, name = place.rpartition("/")
    return folder == home and name.startswith(".") and name not in _TOOLS


def _covered(step: Step) -> Step:
    """Instead of showing an entry, hide it."""
    _, source, place = step
    return ("tmpfs", "700", place) if os.path.isdir(source) else ("ro", os.devnull, place)


def bubblewrap_arguments(
    program: str, steps: Iterable[Step], *, hostname: str, user: tuple[int, int] = (0, 0)
) -> list[str]:
    """The same root as a call of bubblewrap; ``{info}`` stands for its information pipe."""
    uid, gid = map(str, user)
    argv = [
        program, "--unshare-user", "--uid", uid, "--gid", gid, "--unshare-pid", "--unshare-ipc",
        "--unshare-uts", "--hostname", hostname, "--info-fd", "{info}", "--as-pid-1",
    ]  # fmt: skip
    for kind, source, place in steps:
        if kind == "tmpfs":
            argv += ["--perms", source.rjust(4, "0"), "--tmpfs", place]
        else:
            flag = {"link": "--symlink", "ro": "--ro-bind", "rw": "--bind"}[kind]
            argv += [flag, source, place]
    argv += ["--dev", "/dev", "--symlink", "/run/termination-log", "/dev/termination-log"]
    return [*argv, "--proc", "/proc", "--chdir", "/", "--"]
