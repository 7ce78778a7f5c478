"""A pod's volumes as folders on disk, and where each container mounts them.

Every path that a pod names is confined: `..` and links that lead out of a volume are refused.
Contents are written once, at the start of the pod; later changes of a ConfigMap do not show.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .environment import ConfigError, Facts, Sources, expand, field_value, resource_value
from .layout import Mount
from .objects import (
    Container,
    DataSource,
    DownwardSource,
    KeyToPath,
    Pod,
    Projection,
    TokenSource,
    Volume,
)

_FILE_MODE = 0o644


class VolumeError(Exception):
    """A volume cannot be set up (yet); the text is for an event."""

    def __init__(self, volume: str, problem: str) -> None:
        super().__init__(f'MountVolume.SetUp failed for volume "{volume}" : {problem}')


@dataclass(frozen=True, slots=True)
class Needs:
    """The names of all that a pod's environment and volumes refer to."""

    config_maps: frozenset[str]
    secrets: frozenset[str]
    tokens: frozenset[tuple[str, int]]
    """Audience and lifetime in seconds of each service account token."""


def needs_of(pod: Pod) -> Needs:
    """Everything that has to be fetched before *pod* can start."""
    config_maps: set[str] = set()
    secrets: set[str] = set()
    for container in pod.containers.values():
        for source in (variable.value_from for variable in container.env):
            if source and source.config_map_key_ref:
                config_maps.add(source.config_map_key_ref.name)
            if source and source.secret_key_ref:
                secrets.add(source.secret_key_ref.name)
        for group in container.env_from:
            config_maps.update(ref.name for ref in (group.config_map_ref,) if ref)
            secrets.update(ref.name for ref in (group.secret_ref,) if ref)
    parts = [part for volume in pod.spec.volumes for part in _projections(volume)]
    tokens = [part.service_account_token for part in parts if part.service_account_token]
    return Needs(
        frozenset(config_maps | {part.config_map.name for part in parts if part.config_map}),
        frozenset(secrets | {_secret_name(part.secret) for part in parts if part.secret}),
        frozenset((token.audience, token.expiration_seconds) for token in tokens),
    )


def _projections(volume: Volume) -> tuple[Projection, ...]:
    """The volume's sources, a simple one as a projection of one."""
    if volume.projected:
        return volume.projected.sources
    if volume.config_map or volume.secret or volume.downward_api:
        one = Projection(
            config_map=volume.config_map, secret=volume.secret, downward_api=volume.downward_api
        )
        return (one,)
    return ()


def _secret_name(source: DataSource) -> str:
    return source.secret_name or source.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where volumes lie on this machine."""

    pod: Path
    """The pod's own folder."""

    claims: Path
    """Holds a folder for each PersistentVolumeClaim."""

    host_paths: tuple[str, ...] = field(default=())
    """Folders of the machine that pods may mount; none by default."""


def materialise(pod: Pod, *, places: Places, sources: Sources, facts: Facts) -> Mapping[str, Path]:
    """Make every volume of *pod* and say where each lies; what a container wrote there is kept.

    Raises:
        VolumeError: something that a volume needs is missing or not permitted.
    """
    maker = _Maker(pod, places, sources, facts)
    return {volume.name: maker.make(volume) for volume in pod.spec.volumes}


@dataclass(frozen=True, slots=True)
class _Maker:
    pod: Pod
    places: Places
    sources: Sources
    facts: Facts

    def make(self, volume: Volume) -> Path:
        if volume.host_path:
            return self._host_path(volume.name, volume.host_path.path)
        if volume.persistent_volume_claim:
            claim = volume.persistent_volume_claim.claim_name
            return _folder(self.places.claims / f"{self.pod.metadata.namespace}_{claim}")
        folder = self.places.pod / "volumes" / _plain_name(volume.name)
        parts = _projections(volume)
        if not parts and volume.empty_dir is None:
            raise VolumeError(volume.name, "this agent does not know the volume's type")
        _folder(folder)
        for part in parts:
            try:
                self._project(folder, volume, part)
            except ConfigError as error:
                raise VolumeError(volume.name, str(error)) from error
        return folder

    def _host_path(self, name: str, wanted: str) -> Path:
        path = os.path.realpath(wanted)
        allowed = (os.path.realpath(place) for place in self.places.host_paths)
        if not any(path == place or path.startswith(f"{place}/") for place in allowed):
            raise VolumeError(name, f"hostPath {wanted} is not among the permitted folders")
        if not os.path.exists(path):
            raise VolumeError(name, f"hostPath {wanted} does not exist")
        return Path(path)

    def _project(self, folder: Path, volume: Volume, part: Projection) -> None:
        default = volume.projected.default_mode if volume.projected else None
        if part.config_map:
            held = self.sources.config_maps.get(part.config_map.name)
            what = f'configmap "{part.config_map.name}"'
            _write_data(folder, part.config_map, _Data(what, held, default))
        if part.secret:
            name = _secret_name(part.secret)
            held = self.sources.secrets.get(name)
            _write_data(folder, part.secret, _Data(f'secret "{name}"', held, default))
        if part.downward_api:
            self._downward(folder, part.downward_api, default)
        if part.service_account_token:
            self._token(folder, part.service_account_token)

    def _downward(self, folder: Path, source: DownwardSource, default: int | None) -> None:
        for item in source.items:
            text = ""
            if item.field_ref:
                text = field_value(self.pod, item.field_ref, self.facts)
            elif item.resource_field_ref:
                text = resource_value(self.pod, item.resource_field_ref, self.facts)
            write_file(
                folder, item.path, text.encode(), item.mode or source.default_mode or default
            )

    def _token(self, folder: Path, source: TokenSource) -> None:
        token = self.sources.tokens.get(source.audience)
        if token is not None:  # a server without service account tokens gives none
            write_file(folder, source.path, token, 0o600)


@dataclass(frozen=True, slots=True)
class _Data:
    what: str
    held: Mapping[str, bytes] | None
    mode: int | None


def _write_data(folder: Path, source: DataSource, data: _Data) -> None:
    if data.held is None:
        if source.optional:
            return
        raise ConfigError(f"{data.what} not found")
    items = source.items or tuple(KeyToPath(key=key, path=key) for key in data.held)
    for item in items:
        if item.key not in data.held:
            if source.optional:
                continue
            raise ConfigError(f"{data.what} references non-existent key: {item.key}")
        mode = item.mode or source.default_mode or data.mode
        write_file(folder, item.path, data.held[item.key], mode)


def write_file(folder: Path, name: str, content: bytes, mode: int | None) -> None:
    """Write one file of a volume.

    Raises:
        ConfigError: the name leads out of the volume.
    """
    path = Path(inside(str(folder), name))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        os.fchmod(file.fileno(), mode if mode is not None else _FILE_MODE)


def inside(folder: str, name: str) -> str:
    """The path of *name* in *folder*.

    Raises:
        ConfigError: it is absolute, has ``..`` in it, or a link leads out of the folder.
    """
    if name.startswith("/") or ".." in name.split("/"):
        raise ConfigError(f"the path {name!r} must be relative and must not contain '..'")
    path = os.path.join(folder, name)
    real, root = os.path.realpath(path), os.path.realpath(folder)
    if real != root and not real.startswith(f"{root}/"):
        raise ConfigError(f"the path {name!r} leads out of its volume")
    return path


def _folder(path: Path) -> Path:
    """A folder that containers of any user may write, below folders that only we enter."""
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.chmod(0o777)
    return path


def _plain_name(name: str) -> str:
    if "/" in name or name in ("", ".", ".."):
        raise VolumeError(name, "not a volume's name")
    return name


def mounts_of(
    container: Container, volumes: Mapping[str, Path], env: Mapping[str, str]
) -> list[Mount]:
    """What *container* mounts where; a sub-path that is not there becomes a folder.

    Raises:
        ConfigError: a volume is unknown, or a sub-path leads out of it.
    """
    mounts = []
    for wanted in container.volume_mounts:
        source = volumes.get(wanted.name)
        if source is None:
            raise ConfigError(f"no volume named {wanted.name!r}")
        below = expand(wanted.sub_path_expr, env) if wanted.sub_path_expr else wanted.sub_path
        if below:
            source = Path(inside(str(source), below))
            if not source.exists():
                _folder(source)
        target = os.path.normpath("/" + wanted.mount_path.lstrip("/"))
        mounts.append(Mount(str(source), target, wanted.read_only))
    return mounts


def link_into(root: Path, mounts: Iterable[Mount], *, pod: Path) -> None:
    """Without a sandbox: show each mount below *root* by a link.

    Raises:
        ConfigError: a mount lies inside another one that is not the pod's own.
    """
    for mount in sorted(mounts, key=lambda mount: mount.target.count("/")):
        place = root / mount.target.lstrip("/")
        real = os.path.realpath(place.parent)
        if not real.startswith(os.path.realpath(pod) + "/"):
            raise ConfigError(f"without a sandbox nothing can be mounted at {mount.target}")
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.is_symlink() or not place.exists():
            place.unlink(missing_ok=True)
            place.symlink_to(mount.source)
