"""Volumes whose files come from the API: what is in them, and how it changes under a running pod.

A folder shows its files through links, so that all of them change in one step, as a kubelet does
it: whoever watches the folder sees `..data` being replaced, and never half of a change.

```
worker.host -> ..data/worker.host
..data      -> ..x7d2kq_a
..x7d2kq_a/worker.host
```
"""

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

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

_FILE_MODE = 0o644
_TOKEN_MODE = 0o600
_DATA_LINK = "..data"
_NEW_DATA_LINK = "..link"


@dataclass(frozen=True, slots=True)
class ProjectedFile:
    """What one file holds, and who may read it."""

    content: bytes
    mode: int


def projections(volume: Volume) -> tuple[VolumeProjection, ...]:
    """The volume's sources, a simple one as a projection of one; empty for other volumes."""
    if volume.projected:
        return volume.projected.sources
    if volume.config_map or volume.secret or volume.downward_api:
        one = VolumeProjection(
            config_map=volume.config_map, secret=volume.secret, downward_api=volume.downward_api
        )
        return (one,)
    return ()


def secret_name(source: KeyedVolumeSource) -> str:
    """The Secret that *source* means."""
    return source.secret_name or source.name


def collect_files(
    volume: Volume, pod: Pod, *, sources: ResolvedSources, info: PodRuntimeInfo
) -> dict[str, ProjectedFile]:
    """The files of a volume by their names in it; what is named later wins.

    Raises:
        ConfigError: something that must be there is not, or a name leads out of the volume.
    """
    reader = _FileCollector(
        pod, sources, info, volume.projected.default_mode if volume.projected else None
    )
    files = {name: file for part in projections(volume) for name, file in reader.read(part)}
    for name in files:
        _validate_path(name)
    return files


@dataclass(frozen=True, slots=True)
class _FileCollector:
    pod: Pod
    sources: ResolvedSources
    info: PodRuntimeInfo
    mode: int | None
    """Mode of files whose source names none."""

    def read(self, projection: VolumeProjection) -> Iterator[tuple[str, ProjectedFile]]:
        if projection.config_map:
            name = projection.config_map.name
            held = self.sources.config_maps.get(name)
            yield from self._data(projection.config_map, f'configmap "{name}"', held)
        if projection.secret:
            name = secret_name(projection.secret)
            held = self.sources.secrets.get(name)
            yield from self._data(projection.secret, f'secret "{name}"', held)
        if projection.downward_api:
            yield from self._downward(projection.downward_api)
        if projection.service_account_token:
            token = self.sources.tokens.get(projection.service_account_token.audience)
            if token is not None:  # a server without service account tokens gives none
                yield projection.service_account_token.path, ProjectedFile(token, _TOKEN_MODE)

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


def _validate_path(name: str) -> None:
    parts = name.split("/")
    if name.startswith(("/", "..")) or ".." in parts:
        raise ContainerConfigError(f"the path {name!r} must be relative and must not contain '..'")


def atomic_write(
    directory: Path, files: Mapping[str, ProjectedFile], *, owner: int | None = None
) -> bool:
    """Have *folder* show *files* and nothing else of ours, in one step; whether that is new.

    The files are *owner*'s, if that is anybody. May be interrupted anywhere and called again. Not
    by two at once.

    Raises:
        OSError: the disk is full, or the folder is gone.
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
            shutil.rmtree(entry, ignore_errors=True)
    return True


def _current_files(directory: Path, owner: int | None) -> dict[str, ProjectedFile] | None:
    """The files as they are now; ``None`` if there are none yet, or they cannot be read."""
    if not directory.is_dir():
        return None
    files = [path for path in directory.rglob("*") if path.is_file()]
    try:
        if owner is not None and any(path.stat().st_uid != owner for path in files):
            return None  # of an earlier agent, which gave them to another
        return {
            str(path.relative_to(directory)): ProjectedFile(
                path.read_bytes(), stat.S_IMODE(path.stat().st_mode)
            )
            for path in files
        }
    except OSError:  # a mode that forbids even us to read
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
    """Links for what is there, none for what is not."""
    wanted = {name.partition("/")[0] for name in files}
    for name in wanted:
        if not os.path.isdir(directory / name) or os.path.islink(directory / name):
            _link(directory / name, f"{_DATA_LINK}/{name}")
    for entry in directory.iterdir():
        ours = entry.is_symlink() and os.readlink(entry) == f"{_DATA_LINK}/{entry.name}"
        if ours and entry.name not in wanted:
            entry.unlink()


def _link(path: Path, target: str) -> None:
    if path.is_symlink() and os.readlink(path) == target:
        return
    new = path.parent / _NEW_DATA_LINK
    new.unlink(missing_ok=True)
    new.symlink_to(target)
    new.rename(path)
