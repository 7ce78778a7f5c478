"""Files of a pod on disk, from which the next agent recovers.

```
pods/<uid>/pod.json                     address and time of acceptance, written first
pods/<uid>/hosts, hostname, volumes/
pods/<uid>/containers/<name>/<n>/       one run each (`runs`)
logs/<namespace>_<name>_<uid>/<container>/<n>.log
```
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from ....kube.private_files import GROUP_OTHER_WRITE, ensure_private_dir
from ....model.pod_resources import Resources
from ..runtime import shim
from ..runtime.image_run import WRITABLE
from ..runtime.memory_volumes import unmount_volumes
from ..runtime.removal import remove_tree
from ..runtime.runs import RunDir
from ..state.core_types import Pod


class PodRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that the agent accepted."""

    uid: str
    namespace: str
    name: str
    ip: str
    accepted_at: str
    """RFC 3339."""

    boot: str = ""
    monotonic: float = 0.0
    """The same by the machine's monotonic clock, which is valid for this boot."""

    ids: int = 0
    """First of the pod's user ids; 0 if it has no range."""

    resources: dict[str, Resources] | None = None
    """Allocated resources by container; ``None``: an older agent accepted the pod."""

    devices: dict[str, tuple[str, ...]] = {}
    """Names of the devices of each container that has any."""

    claimed: tuple[str, ...] = ()
    """Those of the devices that the pod has by claims."""


def create_dirs(data_dir: Path) -> None:
    """Create the agent's directories.

    Raises:
        UnsafePathError: other users control one of them.
        OSError: one cannot be created.
    """
    for name in ("", "pods", "logs", "volumes"):
        # Older agents used the umask, so that the directories may be readable by others.
        ensure_private_dir(data_dir / name, forbidden=GROUP_OTHER_WRITE)


class PodDir:
    """Directory of one pod."""

    def __init__(self, data_dir: Path, *, uid: str, log_name: str) -> None:
        if uid in ("", ".", "..") or "/" in uid:
            raise ValueError(f"not a uid: {uid!r}")
        self.path = data_dir / "pods" / uid
        self.logs = data_dir / "logs" / log_name

    @classmethod
    def of(cls, data_dir: Path, pod: Pod) -> "PodDir":
        """Return the directory of *pod*."""
        meta = pod.metadata
        log_name = f"{meta.namespace}_{meta.name}_{meta.uid}"
        return cls(data_dir, uid=meta.uid, log_name=log_name)

    @classmethod
    def all(cls, data_dir: Path) -> "Iterator[tuple[PodDir, PodRecord]]":
        """Yield every pod that has a record."""
        pods = data_dir / "pods"
        for path in sorted(pods.iterdir()) if pods.is_dir() else []:
            record = _read(path)
            if record is not None:
                log_name = f"{record.namespace}_{record.name}_{record.uid}"
                yield cls(data_dir, uid=path.name, log_name=log_name), record

    def read_record(self) -> PodRecord | None:
        """Return the record of the pod's acceptance, if any."""
        return _read(self.path)

    def write_record(self, record: PodRecord) -> None:
        """Write the record, durably."""
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        shim.replace_file(str(self.path / "pod.json"), msgspec.json.encode(record).decode())

    def runs(self, container: str) -> list[RunDir]:
        """Return all runs of a container, oldest first."""
        directory = self.path / "containers" / container
        try:
            names = os.listdir(directory)
        except FileNotFoundError:
            return []
        numbers = sorted(int(name) for name in names if name.isdigit())
        return [RunDir(directory / str(number)) for number in numbers]

    def new_run(self, container: str) -> RunDir:
        """Return a new run; numbers are never reused, not even those of cancelled runs."""
        runs = self.runs(container)
        number = int(runs[-1].path.name) + 1 if runs else 0
        return RunDir(self.path / "containers" / container / str(number))

    def log_path(self, run: RunDir) -> Path:
        """Return the log file of a run."""
        return self.logs / run.container_name / f"{run.path.name}.log"

    def remove_old_logs(self, runs: Sequence[RunDir]) -> None:
        """Delete the logs that cannot be read any more once the container of *runs* starts again.

        Only the log of the run before can be.
        """
        last = max((at for at, run in enumerate(runs) if run.is_valid), default=0)
        for run in runs[:last]:
            self.log_path(run).unlink(missing_ok=True)

    def containers(self) -> list[str]:
        """Return the names of the containers that ever had a run."""
        directory = self.path / "containers"
        return sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []

    @classmethod
    def unrecorded(cls, data_dir: Path) -> "list[PodDir]":
        """Return the pods without a record: an agent died before it ran any of their containers."""
        pods = data_dir / "pods"
        found = sorted(pods.iterdir()) if pods.is_dir() else []
        return [
            cls(data_dir, uid=path.name, log_name=f"_{path.name}")
            for path in found
            if _read(path) is None
        ]

    def clear(self) -> None:
        """Delete the volumes and root directories of a finished pod; keep logs and records."""
        unmount_volumes(self.path / "volumes")
        remove_tree(self.path / "volumes")
        for name in self.containers():
            for run in self.runs(name):
                for entry in ("root", "home", "work", WRITABLE):
                    remove_tree(run.path / entry)

    @property
    def is_busy(self) -> bool:
        """Whether a container of the pod runs."""
        return any(run.shim_pid() for name in self.containers() for run in self.runs(name))

    def remove(self) -> None:
        """Delete the pod's files and logs."""
        unmount_volumes(self.path / "volumes")
        # The record is deleted last, so that an interrupted removal is found again.
        for path in [*self._removable_entries(), self.logs]:
            remove_tree(path)
        remove_tree(self.path)

    def _removable_entries(self) -> list[Path]:
        return [path for path in self.path.iterdir() if path.is_dir()] if self.path.is_dir() else []


def _read(path: Path) -> PodRecord | None:
    with suppress(FileNotFoundError, msgspec.DecodeError):
        return msgspec.json.decode((path / "pod.json").read_bytes(), type=PodRecord)
    return None
