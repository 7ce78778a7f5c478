"""Volumes with files of API objects: their content, and atomic updates under a running pod.

As in a kubelet's volumes, the files are links, so that all of them change atomically: a watcher of
the directory sees the replacement of `..data`.

```
worker.host -> ..data/worker.host
..data      -> ..x7d2kq_a
..x7d2kq_a/worker.host
```
"""

import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..runtime.removal import remove_tree
from ..runtime.users import effective_context
from ..state.core_types import (
    DownwardApiSource,
    KeyedVolumeSource,
    KeyToPath,
    Pod,
    Volume,
    VolumeProjection,
)
from ..state.environment import (
    ContainerConfigError,
    PodRuntimeInfo,
    ResolvedSources,
    field_value,
    resource_value,
)

MAX_SIZE = 64 * 2**20
"""Maximum bytes of the files of one volume: a short pod may name one large value many times."""

_FILE_MODE = 0o644
_DATA_LINK = "..data"
_NEW_DATA_LINK = "..link"


@dataclass(frozen=True, slots=True)
class ProjectedFile:
    """Content and mode of one file."""

    content: bytes
    mode: int


def projections(volume: Volume) -> tuple[VolumeProjection, ...]:
    """Return the volume's sources, a single one as one projection; empty for other volumes."""
    if volume.projected:
        return volume.projected.sources
    if volume.config_map or volume.secret or volume.downward_api:
        one = VolumeProjection(
            config_map=volume.config_map, secret=volume.secret, downward_api=volume.downward_api
        )
        return (one,)
    return ()


def secret_name(source: KeyedVolumeSource) -> str:
    """Return the name of the Secret of *source*."""
    return source.secret_name or source.name


def collect_files(
    volume: Volume, pod: Pod, *, sources: ResolvedSources, info: PodRuntimeInfo
) -> dict[str, ProjectedFile]:
    """Return the files of a volume by path; later sources override earlier ones.

    Raises:
        ContainerConfigError: a required source is missing, a path leads out of the volume, or the
            files are too large.
    """
    collector = _FileCollector(
        pod, sources, info, volume.projected.default_mode if volume.projected else None
    )
    files, size = dict[str, ProjectedFile](), 0
    for projection in projections(volume):
        for path, file in collector.read(projection):
            size += len(file.content)
            if size > MAX_SIZE:
                text = f"the files of the volume {volume.name!r} are larger than {MAX_SIZE} bytes"
                raise ContainerConfigError(text)
            _validate_path(path)
            files[path] = file
    return files


@dataclass(frozen=True, slots=True)
class _FileCollector:
    pod: Pod
    sources: ResolvedSources
    info: PodRuntimeInfo
    mode: int | None
    """Mode of files whose source has none."""

    def read(self, projection: VolumeProjection) -> Iterator[tuple[str, ProjectedFile]]:
        if projection.config_map:
            name = projection.config_map.name
            content = self.sources.config_maps.get(name)
            yield from self._data(projection.config_map, f'configmap "{name}"', content)
        if projection.secret:
            name = secret_name(projection.secret)
            content = self.sources.secrets.get(name)
            yield from self._data(projection.secret, f'secret "{name}"', content)
        if projection.downward_api:
            yield from self._downward(projection.downward_api)
        if projection.service_account_token:
            wanted = projection.service_account_token
            token = self.sources.tokens[wanted.audience]
            yield wanted.path, ProjectedFile(token, _token_mode(self.pod))

    def _data(
        self, source: KeyedVolumeSource, kind: str, objects: Mapping[str, bytes] | None
    ) -> Iterator[tuple[str, ProjectedFile]]:
        if objects is None:
            if source.optional:
                return
            raise ContainerConfigError(f"{kind} not found")
        for item in source.items or tuple(KeyToPath(key=key, path=key) for key in objects):
            if item.key in objects:
                yield (
                    item.path,
                    ProjectedFile(objects[item.key], self._mode(item.mode, source.default_mode)),
                )
            elif not source.optional:
                raise ContainerConfigError(f"{kind} references non-existent key: {item.key}")

    def _downward(self, source: DownwardApiSource) -> Iterator[tuple[str, ProjectedFile]]:
        for item in source.items:
            text = ""
            if item.field_ref:
                text = field_value(self.pod, item.field_ref, self.info)
            elif item.resource_field_ref:
                text = resource_value(self.pod, item.resource_field_ref, self.info)
            mode = self._mode(item.mode, source.default_mode)
            yield item.path, ProjectedFile(text.encode(), mode)

    def _mode(self, own: int | None, default: int | None) -> int:
        return next((mode for mode in (own, default, self.mode) if mode is not None), _FILE_MODE)


def _token_mode(pod: Pod) -> int:
    """Return the mode of tokens: like kubelet, private if all containers are the same user."""
    uids = {effective_context(pod, each).run_as_user for each in pod.containers.values()}
    return 0o600 if len(uids) == 1 and None not in uids else _FILE_MODE


def _validate_path(name: str) -> None:
    if name.startswith(("/", "..")) or ".." in name.split("/"):
        raise ContainerConfigError(f"the path {name!r} must be relative and must not contain '..'")


def atomic_write(
    directory: Path, files: Mapping[str, ProjectedFile], *, owner: int | None = None
) -> bool:
    """Replace the agent's files in *directory* by *files*; return whether they differ.

    *owner*, if set, owns the files. Safe to repeat after an interruption; not safe for concurrent
    calls.

    Raises:
        OSError: the disk is full, or the directory does not exist.
    """
    if _current_files(directory / _DATA_LINK, owner) == files:
        _link_all(directory, files)
        return False
    fresh = Path(tempfile.mkdtemp(prefix="..", dir=directory))
    fresh.chmod(0o755)
    for name, file in files.items():
        _write(fresh / name, file, owner)
    _link(directory / _DATA_LINK, fresh.name)
    _link_all(directory, files)
    for entry in directory.iterdir():
        if entry.name.startswith("..") and entry not in (directory / _DATA_LINK, fresh):
            remove_tree(entry)
    return True


def _current_files(directory: Path, owner: int | None) -> dict[str, ProjectedFile] | None:
    """Return the current files; ``None`` if there are none, or they cannot be read."""
    if not directory.is_dir():
        return None
    files = [path for path in directory.rglob("*") if path.is_file()]
    try:
        if owner is not None and any(path.stat().st_uid != owner for path in files):
            return None  # an earlier agent wrote them for another owner
        return {
            str(path.relative_to(directory)): ProjectedFile(
                path.read_bytes(), stat.S_IMODE(path.stat().st_mode)
            )
            for path in files
        }
    except OSError:  # the mode forbids reading even to the agent
        return None


def _write(path: Path, file: ProjectedFile, owner: int | None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as opened:
        opened.write(file.content)
        if owner is not None:
            os.fchown(opened.fileno(), owner, owner)
        os.fchmod(opened.fileno(), file.mode)


def _link_all(directory: Path, files: Mapping[str, ProjectedFile]) -> None:
    """Create the links of *files*, and remove others."""
    names = {name.partition("/")[0] for name in files}
    for name in names:
        if not os.path.isdir(directory / name) or os.path.islink(directory / name):
            _link(directory / name, f"{_DATA_LINK}/{name}")
    for entry in directory.iterdir():
        is_own = entry.is_symlink() and os.readlink(entry) == f"{_DATA_LINK}/{entry.name}"
        if is_own and entry.name not in names:
            entry.unlink()


def _link(path: Path, target: str) -> None:
    try:
        path.symlink_to(target)
    except FileExistsError:
        if path.is_symlink() and os.readlink(path) == target:
            return
        new = path.parent / _NEW_DATA_LINK
        new.unlink(missing_ok=True)
        new.symlink_to(target)
        new.rename(path)
