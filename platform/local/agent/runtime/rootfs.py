"""The root file system of a sandboxed container, as a list of mounts.

The root is an empty tmpfs; the host's top-level directories are bind-mounted into it read-only,
and the pod's volumes on top. Some directories are opened: a tmpfs with those entries of the host's
that a container may see, bind-mounted one by one. These are homes, which have private entries, and
parents of mount paths that the host lacks (`/etc/volcano`, `/data`), because a read-only mount
takes no new mount points. What appears in an opened directory afterwards is not visible.

Entries may be removed between plan and mount: a source that no longer exists is not mounted.
"""

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from . import mounting

Step = tuple[str, str, str, str]
"""Kind, source (the mode of a tmpfs), path in the root, and sub-path of the source, if any.

The sub-path may contain links, and is resolved when it is mounted. Kinds: ``link``, ``tmpfs``;
``show`` for paths of the host, which may be missing; ``hide`` covers a file; ``dev`` and ``proc``;
``device`` for a device file; then ``ro`` and ``rw`` for the pod's mounts; ``seal`` remounts an
earlier tmpfs read-only.
"""

_EXCLUDED_ROOT_DIRS = frozenset({"proc", "dev", "tmp", "run", "lost+found"})

ROOT_HOME = "/root"

_Names = Mapping[str, "_Names | None"]
"""Patterns of the entries of a directory; ``None``: all of the entry."""

_ENVIRONMENT: _Names = dict.fromkeys(
    (
        "bin", "sbin", "lib", "lib32", "lib64", "libexec", "include", "share", "ssl", "src",
        "pyvenv.cfg", "conda-meta", "compiler_compat", "*-linux-gnu",
    )
)  # fmt: skip
"""Entries of a Python environment or installation; others (pip.conf, .condarc) may hold keys."""

_PREFIX: _Names = dict.fromkeys(("bin", "include", "lib", "lib64", "libexec"))
_TOOL_DIRS: _Names = {
    ".local": {
        **_PREFIX,
        "pipx": {"shared": _ENVIRONMENT, "venvs": {"*": _ENVIRONMENT}},
        "share": {
            "pipx": {"shared": _ENVIRONMENT, "venvs": {"*": _ENVIRONMENT}},
            "uv": {"python": {"*": _ENVIRONMENT}, "tools": {"*": _ENVIRONMENT}},
            "virtualenvs": {"*": _ENVIRONMENT},
        },
    },
    ".venv": _ENVIRONMENT,
    ".virtualenvs": {"*": _ENVIRONMENT},
    ".pyenv": {
        **dict.fromkeys(("bin", "libexec", "plugins", "pyenv.d", "shims", "version")),
        "versions": {"*": {**_ENVIRONMENT, "envs": {"*": _ENVIRONMENT}}},
    },
    ".conda": {"envs": {"*": _ENVIRONMENT}},
    ".cargo": dict.fromkeys(("bin", "lib")),
    ".rustup": dict.fromkeys(("settings.toml", "toolchains")),
    ".nvm": {
        **dict.fromkeys(("alias", "nvm.sh", "nvm-exec")),
        "versions": {"*": {"*": dict.fromkeys(("bin", "include", "lib", "share"))}},
    },
    ".asdf": {
        **dict.fromkeys(("asdf.sh", "bin", "lib", "libexec", "plugins", "shims")),
        "installs": {"*": {"*": {**_ENVIRONMENT, "packages": None}}},
    },
}
"""What containers may see of the hidden entries of a home: the programs and libraries of tools."""


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
    other_homes: Sequence[str] = (),
    host: str = "/",
    tools: Sequence[str] = (),
    visible: Sequence[str] = (),
    read_only_root: bool = False,
    devices: Iterable[tuple[str, str]] = (),
) -> list[Step]:
    """Return the steps that build a container's root, in order.

    *hidden* paths are empty. Hidden entries of homes are missing, except the programs of tools;
    the homes are *home*, *other_homes* and root's. *host* is the root of the host's file system (a
    different one in tests). *visible* and *tools* are Python environments; every user of the
    container can reach *tools*, even where their parents are inaccessible to others on the host,
    and both, even where their parents are hidden. *devices* are device files and their paths.
    """
    tree = _HostTree(host)
    desired = sorted(
        (replace(mount, target=tree.canonical(mount.target)) for mount in mounts),
        key=lambda mount: mount.target.count("/"),
    )
    root_home, var_tmp = tree.canonical(ROOT_HOME), tree.canonical("/var/tmp")  # noqa: S108
    empty = {"/tmp": "1777", "/run": "755", var_tmp: "1777"}  # noqa: S108 - the container's own
    homes = {root_home, *(tree.canonical(path) for path in (home, *other_homes))}
    covered = {tree.canonical(path) for path in hidden}
    view = _View(
        tree,
        homes=homes,
        hidden=covered,
        blank={*empty, *(f"/{name}" for name in _EXCLUDED_ROOT_DIRS)},
        tools=[tree.canonical(path) for path in tools],
        environments=sorted({tree.canonical(path) for path in (*tools, *visible)}),
    )
    opened = {each for each in homes if tree.is_dir(each) and not view.is_private(each)} - {"/"}
    opened |= {path for mount in desired if (path := view.dir_to_open(mount.target))}
    opened.add(root_home)
    plan = {step[2]: step for step in view.entries("/")} | view.shown
    for path in opened:
        plan |= {step[2]: step for step in view.entries(path)}
    plan |= {path: ("tmpfs", "755", path, "") for path in (*opened, *view.closed)}
    plan |= {p: ("tmpfs", mode, p, "") for p, mode in empty.items() if tree.can_mount_at(p)}
    # Parents first: what is mounted later covers what was there.
    steps = sorted(plan.values(), key=lambda step: step[2].split("/"))
    created = [path for kind, _, path, _ in steps if kind == "tmpfs"]
    steps += [tree.hide(path) for path in sorted(covered) if _shows(steps, path)]
    # A container's own files in a home would be lost; root's home belongs to its user.
    sealed = [*created, "/"] if read_only_root else sorted((homes - {root_home}) & {*created})
    # A mount of the pod replaces these, or a hidden directory covers them.
    above = {*covered, *(mount.target for mount in desired)}
    sealed = [path for path in sealed if not above.intersection((path, *_parents(path)))]
    steps += [("dev", "", "/dev", ""), ("proc", "", "/proc", "")]
    steps += [("device", source, path, "") for source, path in devices]
    steps += [("ro" if m.read_only else "rw", m.source, m.target, m.sub_path) for m in desired]
    return steps + [("seal", "", path, "") for path in sealed]


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

    def is_dir(self, path: str) -> bool:
        return os.path.isdir(self.host_path(path))

    def can_mount_at(self, path: str) -> bool:
        """Return whether the mount point *path* exists, or can be created in the root."""
        return os.path.dirname(path) == "/" or self.is_dir(path)

    def is_inaccessible(self, path: str) -> bool:
        """Return whether only its owner and group can enter a directory."""
        try:
            return self.is_dir(path) and not os.stat(self.host_path(path)).st_mode & 0o001
        except FileNotFoundError:
            return False

    def entries(self, path: str) -> Iterator[Step]:
        """Yield steps that show each entry of a directory, links as links.

        The directory may be inaccessible, and its entries may be deleted concurrently.
        """
        try:
            found = sorted(os.scandir(self.host_path(path)), key=lambda entry: entry.name)
        except OSError:
            return
        for entry in found:
            target = os.path.join(path, entry.name)
            try:
                if entry.is_symlink():
                    yield ("link", os.readlink(entry.path), target, "")
                elif entry.is_dir() or entry.is_file():
                    yield ("show", entry.path, target, "")
            except OSError:
                continue

    def matches(self, directory: str, names: _Names) -> Iterator[Step]:
        """Yield steps that show what *names* permits of a directory; links are not followed."""
        for step in self.entries(directory):
            for pattern, below in names.items():
                if not fnmatchcase(os.path.basename(step[2]), pattern):
                    continue
                if below is None or step[0] == "link":
                    yield step
                else:
                    yield from self.matches(step[2], below)

    def hide(self, path: str) -> Step:
        """Return the step that covers *path*."""
        return ("tmpfs", "700", path, "") if self.is_dir(path) else ("hide", "", path, "")


class _View:
    """What of the host a container may see.

    Private are the hidden entries of homes, directories that each container has itself (`/tmp`),
    and inaccessible parents of tools. Of these only the programs of tools and environments are
    visible, in ``shown`` by path; of hidden paths nothing is.
    """

    def __init__(
        self,
        tree: _HostTree,
        *,
        homes: Collection[str],
        hidden: Collection[str],
        blank: Collection[str],
        tools: Collection[str],
        environments: Iterable[str],
    ) -> None:
        self._tree = tree
        self._homes = frozenset(homes)
        self._hidden = frozenset(hidden)
        self._blank = frozenset(blank)
        self.closed: frozenset[str] = frozenset()
        self.closed = frozenset(path for each in tools if (path := self._closed_above(each)))
        self.shown: dict[str, Step] = {}
        for home in self._homes:
            self._show(tree.matches(home, _TOOL_DIRS))
        for path in environments:
            if self.is_private(path) and not path.startswith(("/proc/", "/dev/")):
                self._show(tree.matches(path, _ENVIRONMENT))

    def _closed_above(self, tool: str) -> str | None:
        candidates = (p for p in reversed(_parents(tool)) if p not in ("/", *self._homes))
        return next(
            (p for p in candidates if not self.is_private(p) and self._tree.is_inaccessible(p)),
            None,
        )

    def _show(self, steps: Iterable[Step]) -> None:
        for step in steps:
            above = _parents(step[2])
            if not any(path in self._hidden or path in self.shown for path in (step[2], *above)):
                self.shown[step[2]] = step

    def is_private(self, path: str) -> bool:
        """Return whether *path* is in a private part of the host."""
        return any(
            each in self._blank
            or each in self.closed
            or (os.path.dirname(each) in self._homes and os.path.basename(each)[:1] == ".")
            for each in (path, *_parents(path))
        )

    def entries(self, directory: str) -> Iterator[Step]:
        """Yield steps that show what is visible in *directory*."""
        for step in self._tree.entries(directory):
            above = (step[2], *_parents(step[2]))
            if any(path in self._hidden for path in above):
                continue
            if any(path in self.shown for path in above) or not self.is_private(step[2]):
                yield step

    def dir_to_open(self, target: str) -> str | None:
        """Return the directory to open so that *target* can be mounted, if any."""
        parents = _parents(target)
        if os.path.lexists(self._tree.host_path(target)) or self._blank.intersection(parents):
            return None
        nearest = next(p for p in parents if p == "/" or self._tree.is_dir(p))
        return None if nearest == "/" else nearest


def _parents(path: str) -> list[str]:
    """Return the parents of an absolute path, the nearest one first, up to the root."""
    return [str(parent) for parent in PurePosixPath(path).parents]


def is_below(path: str, directory: str) -> bool:
    """Return whether the absolute *path* is *directory*, or in it; links are not resolved."""
    return directory == "/" or f"{path}/".startswith(f"{directory}/")


def _shows(steps: Iterable[Step], path: str) -> bool:
    """Return whether *path* of the host is visible after *steps*."""
    kind = ""
    for step in steps:
        if is_below(path, step[2]):
            kind = step[0]
    return kind == "show"


_MAX_BUBBLEWRAP_ENTRIES = 100
"""Entries of a home that bubblewrap mounts itself: its work is quadratic, and 9,000 arguments are
its limit."""


def stage_plan(
    steps: Iterable[Step], directory: str, *, homes: bool = False
) -> tuple[list[Step], list[Step]]:
    """Return the steps to stage in *directory* for a program that mounts by path, and its steps.

    Sub-paths and mounts inside other mounts must be staged: a pod may replace a component of their
    paths by a link. With *homes* those with many entries are staged, too. Paths in the directory
    are a number, or below one.
    """
    staged_homes, every = _stage_homes(steps, directory) if homes else ([], list(steps))
    mounts = {step[2]: step for step in every if step[0] in ("ro", "rw")}
    inside = {path: above for path in mounts if (above := _containing_mount(path, mounts))}
    needed = {path for path, step in mounts.items() if step[3]} | set(inside.values())
    staged = staged_homes
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


def _stage_homes(steps: Iterable[Step], directory: str) -> tuple[list[Step], list[Step]]:
    """Return the steps of read-only homes with many entries, to stage, and the others."""
    every = list(steps)
    sealed = {path for kind, _, path, _ in every if kind == "seal"}
    created = [path for kind, _, path, _ in every if kind == "tmpfs" and path in sealed]
    counts = {
        home: sum(kind in ("show", "link") and is_below(path, home) for kind, _, path, _ in every)
        for home in created
    }
    crowded = [home for home in created if counts[home] > _MAX_BUBBLEWRAP_ENTRIES]
    staged: list[Step] = []
    remaining: list[Step] = []
    numbers: dict[str, str] = {}
    for step in every:
        kind, source, path, _ = step
        home = next((each for each in crowded if is_below(path, each)), None)
        if home is None or kind in ("ro", "rw", "seal"):
            remaining.append(step)
            continue
        if home not in numbers:
            numbers[home] = str(len(staged))
            remaining.append(("rw", f"{directory}/{numbers[home]}", home, ""))
        staged.append((kind, source, f"{numbers[home]}{path[len(home) :]}", ""))
    return staged, remaining


def _containing_mount(path: str, mounts: Mapping[str, Step]) -> str | None:
    """Return the mount that contains *path*, if any."""
    parents = (str(parent) for parent in PurePosixPath(path).parents)
    return next((parent for parent in parents if parent in mounts), None)


_BUBBLEWRAP_FLAGS = {
    "link": "--symlink",
    "show": "--ro-bind-try",
    "hide": "--ro-bind",
    "device": "--dev-bind-try",
    "ro": "--ro-bind",
    "rw": "--bind",
}


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
            existing = {each: k for each, k in existing.items() if not is_below(each, path)}
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
            argv += [_BUBBLEWRAP_FLAGS[kind], os.devnull if kind == "hide" else source, path]
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
