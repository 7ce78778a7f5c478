"""Control groups (version 2) of containers, where this process may create them.

```
<base>/batholith-<id>/<pod uid>/<container>-<n>/
```

*base* is the root of the hierarchy if the agent runs as root, else the uppermost group above its
own that its user owns, as systemd delegates one to each user. Only the processes of a container are
in its group: its shim is not, so that it reports the exit when the kernel kills the group.
"""

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ....model.pod_resources import Resources
from ....model.quantity import parse
from ..state.core_types import Container
from . import shim

CONTROLLERS = ("cpu", "memory", "pids")
PERIOD = 100_000
"""Microseconds of a period of `cpu.max`."""

_MIN_QUOTA = 1000
_MIN_SHARES, _MAX_SHARES = 2, 262_144
_REMOVALS, _REMOVAL_INTERVAL = 100, 0.02
"""Attempts to remove a group, whose processes take some time to exit, and the seconds between."""


@dataclass(frozen=True, slots=True)
class CgroupReport:
    """Whether containers can have groups, and which limits the kernel enforces in them."""

    root: Path | None = None
    """Parent of the groups of pods; ``None``: there are none."""

    controllers: frozenset[str] = frozenset()
    reason: str = ""
    """Why controllers are missing; empty if none are."""


def detect(
    data_dir: Path, *, proc: Path = Path("/proc"), probe: Callable[[Path], str] | None = None
) -> CgroupReport:
    """Find where this process may create groups, by creating one and moving a process there.

    *probe* moves a process into a group, and returns why that fails.
    """
    mount = mount_point(proc)
    if mount is None:
        return CgroupReport(reason="no cgroup2 file system is mounted")
    base = base_group(mount, proc)
    if base is None:
        return CgroupReport(reason="no control group is delegated to the user of the agent")
    name = hashlib.sha256(str(data_dir.resolve()).encode()).hexdigest()[:12]
    root = base / f"batholith-{name}"
    try:
        found = _prepare(root)
        test = root / "probe"
        create_group(test)
        try:
            error = (probe or move_process)(test)
        finally:
            remove_group(test)
    except OSError as failure:
        return CgroupReport(reason=f"{failure.filename or root}: {failure.strerror}")
    if error:
        return CgroupReport(reason=error)
    missing = [each for each in CONTROLLERS if each not in found]
    if len(missing) == len(CONTROLLERS):
        remove_group(root)
        return CgroupReport(reason=f"{base} has none of the controllers {', '.join(missing)}")
    reason = f"{base} has no controller {', '.join(missing)}" if missing else ""
    return CgroupReport(root, frozenset(found), reason)


def mount_point(proc: Path) -> Path | None:
    """Return where control groups of version 2 are mounted, according to the directory *proc*."""
    for line in (proc / "self/mountinfo").read_text().splitlines():
        fields = line.split()
        if fields[fields.index("-") + 1] == "cgroup2":
            return Path(fields[4])
    return None


def base_group(mount: Path, proc: Path) -> Path | None:
    """Return the group in which this process may create others; ``None`` if there is none."""
    if os.geteuid() == 0:
        return mount if is_writable(mount) else None
    lines = (proc / "self/cgroup").read_text().splitlines()
    own = next((line[3:] for line in lines if line.startswith("0::")), "/")
    group = mount / own.lstrip("/")
    writable = [each for each in (group, *group.parents) if each.is_relative_to(mount)]
    usable = [each for each in writable if is_writable(each)]
    return usable[-1] if usable else None


def is_writable(group: Path) -> bool:
    """Return whether this process may create groups in *group* and move processes to it."""
    return all(os.access(each, os.W_OK) for each in (group, group / "cgroup.procs"))


def _prepare(root: Path) -> list[str]:
    """Create *root* and return the controllers that groups in it have."""
    create_group(root)
    offered = _fields(root / "cgroup.controllers")
    for name in CONTROLLERS:
        if name not in offered:
            with suppress(OSError):  # its own parent does not have it
                _write(root.parent / "cgroup.subtree_control", f"+{name}")
    return _enable_controllers(root)


def _enable_controllers(group: Path) -> list[str]:
    """Give the groups in *group* its controllers; return them."""
    found = [name for name in CONTROLLERS if name in _fields(group / "cgroup.controllers")]
    for name in found:
        _write(group / "cgroup.subtree_control", f"+{name}")
    return found


def create_group(group: Path) -> None:
    """Create a group, unless it exists."""
    group.mkdir(exist_ok=True)


def move_process(group: Path) -> str:
    """Move a process to *group* to find out whether that is possible; return why it is not."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            shim.enter_cgroup(str(group))
            code = 0
        finally:
            os._exit(code)
    failed = os.waitpid(child, 0)[1] != 0
    return f"no process can be moved to {group}" if failed else ""


def limits_of(resources: Resources, *, max_processes: int = 0) -> Mapping[str, str]:
    """Return the control files of a container's group, and what they contain."""
    limits, requests = resources.limits, resources.requests
    files = {"memory.oom.group": "1"}
    if max_processes:
        files["pids.max"] = str(max_processes)
    if "memory" in limits:
        size = parse(limits["memory"]).nanos // 1_000_000_000
        files |= {"memory.max": str(size), "memory.swap.max": "0"}
    if "cpu" in limits:
        quota = max(parse(limits["cpu"]).nanos * PERIOD // 1_000_000_000, _MIN_QUOTA)
        files["cpu.max"] = f"{quota} {PERIOD}"
    return {**files, "cpu.weight": _weight(parse(requests.get("cpu", 0)).nanos)}


def pod_files(containers: Iterable[Container]) -> Mapping[str, str]:
    """Return the control files of the group of a pod: its part of the CPU follows its requests."""
    requests = (each.resources.requests.get("cpu", 0) for each in containers)
    return {"cpu.weight": _weight(sum(parse(each).nanos for each in requests))}


def _weight(nanos: int) -> str:
    """Return the weight of a request of CPU, as container runtimes convert it."""
    shares = min(max(nanos * 1024 // 1_000_000_000, _MIN_SHARES), _MAX_SHARES)
    return str(1 + (shares - _MIN_SHARES) * 9999 // (_MAX_SHARES - _MIN_SHARES))


def create(
    report: CgroupReport,
    pod: str,
    run: str,
    files: Mapping[str, str],
    *,
    of_pod: Mapping[str, str] | None = None,
) -> str:
    """Create the group of a run of a container, with limits; return its path, or an empty text.

    *pod* is the pod's uid, *run* is ``<container>-<n>``; *files* and *of_pod* are control files.

    Raises:
        OSError: it cannot be created.
    """
    if report.root is None:
        return ""
    parent = report.root / pod
    create_group(parent)
    _enable_controllers(parent)
    group = parent / run
    create_group(group)
    set_limits(report, group, files, of_pod=of_pod)
    return str(group)


def set_limits(
    report: CgroupReport,
    group: Path,
    files: Mapping[str, str],
    *,
    of_pod: Mapping[str, str] | None = None,
) -> None:
    """Write the control files of the group of a run, and with *of_pod* of the pod's group.

    Raises:
        OSError: one cannot be written.
    """
    for directory, content in ((group.parent, of_pod or {}), (group, files)):
        for name, text in content.items():
            if name.partition(".")[0] in report.controllers:
                with suppress(FileNotFoundError):  # memory.swap.max: there is no swap
                    _write(directory / name, text)


def limits_memory(group: str) -> bool:
    """Return whether the kernel limits the memory of a group."""
    return bool(group) and _fields(Path(group) / "memory.max") not in ([], ["max"])


def oom_killed(group: str) -> bool:
    """Return whether the kernel has killed a process of a group for its memory limit."""
    events = _fields(Path(group) / "memory.events") if group else []
    return any(
        name == "oom_kill" and number != "0"
        for name, number in zip(events[::2], events[1::2], strict=False)
    )


def remove_group(group: Path) -> bool:
    """Kill the processes of a group and of those in it, and remove them; return whether it could.

    Nothing but control files is written: a group that does not exist is removed.
    """
    with suppress(OSError):  # before Linux 5.14
        _write(group / "cgroup.kill", "1")
    for each in _groups_in(group):
        remove_group(each)
    for _ in range(_REMOVALS):
        try:
            os.rmdir(group)
        except FileNotFoundError:
            return True
        except OSError:
            time.sleep(_REMOVAL_INTERVAL)
        else:
            return True
    return False


def remove_stale(report: CgroupReport, pods: Iterable[str]) -> None:
    """Remove the groups of all pods but *pods*, their uids."""
    if report.root is not None:
        kept = set(pods)
        for group in _groups_in(report.root):
            if group.name not in kept:
                remove_group(group)


def _groups_in(group: Path) -> list[Path]:
    with suppress(OSError):
        return [each for each in group.iterdir() if each.is_dir()]
    return []


def _fields(path: Path) -> list[str]:
    with suppress(OSError):
        return path.read_text().split()
    return []


def _write(path: Path, text: str) -> None:
    # Not created if it is missing: groups have exactly the files of their controllers.
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
