"""The root file system of a sandboxed container, as a list of mounts.

The root is an empty tmpfs; the host's top-level directories are bind-mounted into it read-only,
and the pod's volumes on top. If the host lacks a mount path (`/etc/volcano`, `/data`), the nearest
existing parent becomes a tmpfs with its entries bind-mounted one by one, because a read-only mount
takes no new mount points.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from . import mounting

Step = tuple[str, str, str, str]
"""Kind, source (the mode of a tmpfs), path in the root, and sub-path of the source, if any.

The sub-path may contain links, and is resolved when it is mounted. Kinds: ``link``, ``tmpfs``;
``show`` for paths of the host; ``dev`` and ``proc``; then ``ro`` and ``rw`` for the pod's mounts;
``seal`` remounts an earlier tmpfs read-only.
"""

_EXCLUDED_ROOT_DIRS = frozenset({"proc", "dev", "tmp", "run", "lost+found"})
_HOME_TOOL_DIRS = frozenset(
    {".local", ".pyenv", ".venv", ".virtualenvs", ".cargo", ".rustup", ".nvm", ".asdf", ".conda"}
)
"""Hidden entries of a home that containers may see; the others may hold keys."""

ROOT_HOME = "/root"


@dataclass(frozen=True, slots=True)
class Mount:
    """Bind mount of a file or directory of the host."""

    source: str
    target: str
    read_only: bool = False
    sub_path: str = ""
    """Path below *source* to mount; in a volume, where its users may put links."""


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
    """Return the steps that build a container's root, in order.

    *hidden* paths are empty, and so are hidden entries of *home* except tools. *host* is the root
    of the host's file system (a different one in tests). Every user of the container can reach the
    directories *tools*, even where their parents are inaccessible to others on the host. The
    directories *visible* exist even where their parents are hidden.
    """
    machine = _HostTree(host)
    desired = sorted(
        (replace(mount, target=machine.canonical(mount.target)) for mount in mounts),
        key=lambda mount: mount.target.count("/"),
    )
    steps = [step for step in machine.bind_entries("/") if step[2][1:] not in _EXCLUDED_ROOT_DIRS]
    writable = {"/tmp": "1777", "/run": "755", "/var/tmp": "1777"}  # noqa: S108 - the container's
    steps += [
        ("tmpfs", mode, path, "") for path, mode in writable.items() if machine.can_mount_at(path)
    ]
    closed = {home} if tools and machine.is_inaccessible(home) else set()
    opened = (
        {ROOT_HOME}
        | closed
        | {path for m in desired if (path := machine.dir_to_create(m.target, writable))}
    )
    for path in sorted(opened):
        steps.append(("tmpfs", "755", path, ""))
        steps += [step for step in machine.bind_entries(path) if not _is_private(step[2], home)]
    if home not in opened:
        private = (step[2] for step in machine.bind_entries(home) if _is_private(step[2], home))
        steps += (machine.hide_except(path, visible) for path in private)
    buried = [path for path in map(machine.canonical, visible) if _is_hidden(path, writable, home)]
    bound = list(machine.bind_tools(tools, [*opened, *writable]))
    existing = {step[2] for step in bound}
    steps += bound
    steps += [("show", machine.host_path(p), p, "") for p in buried if p not in existing]
    steps += [
        machine.hide_except(path)
        for path in hidden
        if not path.startswith(tuple(writable)) or any(_is_below(path, each) for each in buried)
    ]
    sealed = [path for kind, _, path, _ in steps if kind == "tmpfs" and path not in hidden]
    # A mount of the pod replaces these, or has links where they were.
    sealed = [path for path in sealed if not any(_is_below(path, each.target) for each in desired)]
    steps += [("dev", "", "/dev", ""), ("proc", "", "/proc", "")]
    steps += [("ro" if m.read_only else "rw", m.source, m.target, m.sub_path) for m in desired]
    return steps + [("seal", "", path, "") for path in [*sealed, "/"] if read_only_root]


@dataclass(frozen=True, slots=True)
class _HostTree:
    """The host's file system below *host*."""

    host: str

    def host_path(self, path: str) -> str:
        return os.path.normpath(self.host + "/" + path)

    def canonical(self, path: str) -> str:
        """Resolve the symbolic links of *path*, as far as it exists."""
        host = os.path.realpath(self.host)
        inside = os.path.relpath(os.path.realpath(self.host_path(path)), host)
        return "/" if inside == "." else f"/{inside}"

    def can_mount_at(self, path: str) -> bool:
        """Return whether the mount point *path* exists, or can be created in the root."""
        return os.path.dirname(path) == "/" or os.path.isdir(self.host_path(path))

    def dir_to_create(self, target: str, writable: Iterable[str]) -> str | None:
        """Return the directory to replace by a tmpfs so that *target* can be mounted, if any."""
        parents = [str(parent) for parent in PurePosixPath(target).parents]
        if os.path.lexists(self.host_path(target)) or any(path in parents for path in writable):
            return None
        nearest = next(p for p in parents if os.path.isdir(self.host_path(p)))
        return None if nearest == "/" else nearest

    def bind_entries(self, path: str) -> Iterable[Step]:
        """Yield steps that show each entry of a directory, links as links."""
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
        """Yield steps that show *tools* below inaccessible directories."""
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
        """Return whether only its owner and group can enter a directory."""
        return (
            os.path.isdir(self.host_path(path))
            and not os.stat(self.host_path(path)).st_mode & 0o001
        )

    def hide_except(self, path: str, visible: Iterable[str] = ()) -> Step:
        """Return the step that hides *path*, except what is *visible* in it."""
        if os.path.isdir(self.host_path(path)):
            mode = "755" if any(_is_below(each, path) for each in visible) else "700"
            return ("tmpfs", mode, path, "")
        return ("show", os.devnull, path, "")


def _is_below(path: str, directory: str) -> bool:
    return f"{path}/".startswith(f"{directory}/")


def _is_hidden(directory: str, writable: Iterable[str], home: str) -> bool:
    """Return whether the plan hides *directory*; a parent of the home never counts as hidden."""
    if _is_below(home, directory):
        return False
    above = [str(parent) for parent in PurePosixPath(directory).parents]
    return any(path in above for path in writable) or any(
        _is_private(path, home) for path in (directory, *above)
    )


def _is_private(path: str, home: str) -> bool:
    directory, _, name = path.rpartition("/")
    return directory == home and name.startswith(".") and name not in _HOME_TOOL_DIRS


def stage_plan(steps: Iterable[Step], directory: str) -> tuple[list[Step], list[Step]]:
    """Return the steps to stage in *directory* for a program that mounts by path, and its steps.

    Sub-paths and mounts inside other mounts must be staged: a pod may replace a component of their
    paths by a link. Paths in the directory are a number, or below one.
    """
    every = list(steps)
    mounts = {step[2]: step for step in every if step[0] in ("ro", "rw")}
    inside = {path: above for path in mounts if (above := _containing_mount(path, mounts))}
    needed = {path for path, step in mounts.items() if step[3]} | set(inside.values())
    staged: list[Step] = []
    staged_paths: dict[str, str] = {}
    remaining: list[Step] = []
    for step in every:
        kind, source, path, sub_path = step
        above = inside.get(path)
        if mounts.get(path) is not step or not {path, above} & {*needed, *staged_paths}:
            remaining.append(step)
            continue
        staged_path = f"{staged_paths[above]}{path[len(above) :]}" if above else str(len(staged))
        staged_paths[path] = staged_path
        staged.append((kind, source, staged_path, sub_path))
        if not above:
            remaining.append(("rw", f"{directory}/{staged_path}", path, ""))
    return staged, remaining


def _containing_mount(path: str, mounts: Mapping[str, Step]) -> str | None:
    """Return the mount that contains *path*, if any."""
    parents = (str(parent) for parent in PurePosixPath(path).parents)
    return next((parent for parent in parents if parent in mounts), None)


def bubblewrap_arguments(
    program: str,
    steps: Iterable[Step],
    *,
    hostname: str,
    user: tuple[int, int],
    tmpfs_size: int,
) -> list[str]:
    """Return the bubblewrap command that builds the root; ``{info}`` is its ``--info-fd``.

    *user* is the user and group in a user namespace of one id. Each tmpfs has *tmpfs_size* bytes.
    """
    argv = [program, "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--hostname", hostname]
    argv += ["--info-fd", "{info}", "--as-pid-1", "--die-with-parent"]
    argv += ["--unshare-user", "--uid", str(user[0]), "--gid", str(user[1]), "--cap-drop", "ALL"]
    argv += _tmpfs_arguments("/", mode="755", size=tmpfs_size)
    sealed: list[str] = []
    existing: dict[str, str] = {}
    for kind, source, path, _ in steps:
        for parent in _missing_parents(path, existing):
            argv += ["--perms", "0755", "--dir", parent]  # bubblewrap's default is mode 0700
            existing[parent] = "tmpfs"
        if kind == "tmpfs":  # covers earlier entries
            existing = {each: k for each, k in existing.items() if not _is_below(each, path)}
        existing[path] = kind
        if kind == "tmpfs":
            argv += _tmpfs_arguments(path, mode=source, size=tmpfs_size)
        elif kind == "seal":
            sealed += ["--remount-ro", path]
        elif kind == "dev":
            argv += ["--dev", "/dev", "--symlink", "/run/termination-log", "/dev/termination-log"]
            argv += _tmpfs_arguments("/dev/shm", mode="1777", size=tmpfs_size)  # noqa: S108
        elif kind == "proc":
            argv += ["--proc", "/proc"]
            for control in mounting.READ_ONLY_PROC_PATHS:
                argv += ["--ro-bind-try", f"/proc/{control}", f"/proc/{control}"]
        else:
            flag = {"link": "--symlink", "show": "--ro-bind", "ro": "--ro-bind", "rw": "--bind"}
            argv += [flag[kind], source, path]
    if existing.get("/dev") == "dev":
        sealed += ["--remount-ro", "/dev"]  # bubblewrap does not limit its size
    return [*argv, *sealed, "--chdir", "/", "--"]


def _tmpfs_arguments(path: str, *, mode: str, size: int) -> list[str]:
    size = mounting.HIDDEN_SIZE if mode == mounting.HIDDEN_MODE else size
    return ["--perms", mode.rjust(4, "0"), "--size", str(size), "--tmpfs", path]


def _missing_parents(path: str, existing: Mapping[str, str]) -> list[str]:
    """Return the parents of *path* that do not exist, not even in an *existing* bind mount."""
    missing: list[str] = []
    for parent in PurePosixPath(path).parents:
        kind = existing.get(str(parent))
        if str(parent) == "/" or kind is not None:
            return [] if kind not in (None, "tmpfs") else missing[::-1]
        missing.append(str(parent))
    return missing
