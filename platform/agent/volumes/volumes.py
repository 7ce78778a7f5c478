"""A pod's volumes as folders on disk, and where each container mounts them.

Every path that a pod names is confined: `..` and links that lead out of a volume are refused.
What comes from the API is made by `projected`, and made anew when it changes.
"""

import errno
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..runtime.ids import Ids, chown, chown_tree
from ..runtime.mounting import mkdir_beneath
from ..runtime.rootfs import Mount
from ..runtime.users import volume_owner
from ..state.core_types import Container, Pod, Volume
from ..state.environment import ContainerConfigError, PodRuntimeInfo, ResolvedSources, expand
from .projected import atomic_write, collect_files, projections, secret_name


def pvc_dir(base: Path, *, namespace: str, name: str, uid: str) -> Path:
    """Where a claim's files lie; a namesake that comes later does not find them."""
    return base / f"{namespace}_{name}_{uid}"


def _uid_of(directory: Path) -> str:
    return directory.name.rpartition("_")[2]


class VolumeError(Exception):
    """A volume cannot be set up (yet); the text is for an event."""

    def __init__(self, volume: str, problem: str) -> None:
        super().__init__(f'MountVolume.SetUp failed for volume "{volume}" : {problem}')


@dataclass(frozen=True, slots=True)
class PodReferences:
    """The names of all that a pod's environment and volumes refer to."""

    config_maps: frozenset[str]
    secrets: frozenset[str]
    claims: frozenset[str]
    tokens: frozenset[tuple[str, int]]
    """Audience and lifetime in seconds of each service account token."""

    uses_downward_api: bool
    """Files show fields of the pod's own object, which may change."""

    @property
    def can_change(self) -> bool:
        """Whether any of it may change while the pod runs."""
        return bool(self.config_maps or self.secrets or self.tokens or self.uses_downward_api)


def references_of(pod: Pod) -> PodReferences:
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
    parts = [part for volume in pod.spec.volumes for part in projections(volume)]
    claims = [volume.persistent_volume_claim for volume in pod.spec.volumes]
    tokens = [part.service_account_token for part in parts if part.service_account_token]
    return PodReferences(
        frozenset(config_maps | {part.config_map.name for part in parts if part.config_map}),
        frozenset(secrets | {secret_name(part.secret) for part in parts if part.secret}),
        frozenset(c.claim_name for c in claims if c),
        frozenset((token.audience, token.expiration_seconds) for token in tokens),
        any(part.downward_api for part in parts),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumePaths:
    """Where volumes lie on this machine."""

    pod_dir: Path
    """The pod's own folder."""

    pvc_root: Path
    """Holds a folder for each PersistentVolumeClaim."""

    host_paths: tuple[str, ...] = field(default=())
    """Folders of the machine that pods may mount; none by default."""

    ids: Ids = field(default_factory=Ids)
    """Whose the volumes are."""


@dataclass(frozen=True, slots=True)
class MountedVolume:
    """A volume on disk."""

    path: Path
    read_only: bool = False
    """Containers may only read it, whatever their mounts say."""


def set_up_volumes(
    pod: Pod, *, paths: VolumePaths, sources: ResolvedSources, info: PodRuntimeInfo
) -> Mapping[str, MountedVolume]:
    """Make every volume of *pod* and say where each lies; what a container wrote there is kept.

    Again for the same pod, it brings the files up to date with *sources*.

    Raises:
        VolumeError: something that a volume needs is missing or not permitted.
    """
    maker = _VolumeBuilder(pod, paths, sources, info)
    return {volume.name: maker.build(volume) for volume in pod.spec.volumes}


@dataclass(frozen=True, slots=True)
class _VolumeBuilder:
    pod: Pod
    paths: VolumePaths
    sources: ResolvedSources
    info: PodRuntimeInfo

    def build(self, volume: Volume) -> MountedVolume:
        if volume.host_path:
            return MountedVolume(self._host_path(volume.name, volume.host_path.path))
        if volume.persistent_volume_claim:
            claim = volume.persistent_volume_claim
            return self._claim(volume.name, claim.claim_name, read_only=claim.read_only)
        folder = self.paths.pod_dir / "volumes" / _plain_name(volume.name)
        if volume.empty_dir is not None:
            return MountedVolume(self._pod_owned_dir(folder))
        if not projections(volume) and volume.projected is None:
            raise VolumeError(volume.name, "this agent does not know the volume's type")
        try:
            files = collect_files(volume, self.pod, sources=self.sources, info=self.info)
        except ContainerConfigError as error:
            raise VolumeError(volume.name, str(error)) from error
        owner = self.paths.ids.owner(volume_owner(self.pod))
        atomic_write(_shared_dir(folder, self.paths.ids.base), files, owner=owner)
        return MountedVolume(folder, read_only=True)

    def _claim(self, volume: str, name: str, *, read_only: bool) -> MountedVolume:
        bound = self.sources.claims.get(name)
        if bound is None:
            raise VolumeError(volume, f'persistentvolumeclaim "{name}" not found')
        if bound.error:
            raise VolumeError(volume, bound.error)
        read_only = read_only or bound.read_only
        if bound.host_path:
            return MountedVolume(self._host_path(volume, bound.host_path), read_only)
        if bound.handle != bound.uid:
            return MountedVolume(self._retained_dir(volume, bound.handle), read_only)
        namespace = self.pod.metadata.namespace
        place = pvc_dir(self.paths.pvc_root, namespace=namespace, name=name, uid=bound.uid)
        return MountedVolume(self._pod_owned_dir(place), read_only)

    def _retained_dir(self, volume: str, handle: str) -> Path:
        """The folder that was made for a claim which is gone."""
        found = [each for each in self.paths.pvc_root.glob("*_*_*") if _uid_of(each) == handle]
        if not found:
            raise VolumeError(volume, f"there is no folder {handle!r} on this node")
        return self._pod_owned_dir(found[0])

    def _pod_owned_dir(self, directory: Path) -> Path:
        """A folder that is the pod's to write, with all that an earlier agent left in it."""
        chown_tree(_shared_dir(directory, self.paths.ids.base), self.paths.ids.base)
        return directory

    def _host_path(self, name: str, source: str) -> Path:
        path = os.path.realpath(source)
        allowed = (os.path.realpath(place) for place in self.paths.host_paths)
        if not any(path == place or path.startswith(f"{place}/") for place in allowed):
            raise VolumeError(name, f"hostPath {source} is not among the permitted folders")
        if not os.path.exists(path):
            raise VolumeError(name, f"hostPath {source} does not exist")
        return Path(path)


def make_sub_path(directory: str, name: str, *, owner: int | None) -> None:
    """See that *name* is there in *folder*: what is not becomes a folder that all may write.

    A container may swap it again at any time: it is resolved anew when it is mounted.

    Raises:
        ConfigError: it is absolute, has ``..`` in it, or a link leads out of the folder.
    """
    if name.startswith("/") or ".." in name.split("/"):
        raise ContainerConfigError(f"the path {name!r} must be relative and must not contain '..'")
    try:
        mkdir_beneath(directory, name, mode=0o777, owner=owner)
    except OSError as error:
        if error.errno in (errno.EXDEV, errno.ELOOP):
            raise ContainerConfigError(f"the path {name!r} leads out of its volume") from error
        raise ContainerConfigError(f"the path {name!r} cannot be used: {error.strerror}") from error


def _shared_dir(path: Path, owner: int | None) -> Path:
    """A folder that containers of any user may write, below folders that only we enter."""
    if not path.is_dir():  # else its mode may be a container's own choice
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.chmod(0o777)
        chown(path, owner)
    return path


def _plain_name(name: str) -> str:
    if "/" in name or name in ("", ".", ".."):
        raise VolumeError(name, "not a volume's name")
    return name


def container_mounts(
    container: Container,
    volumes: Mapping[str, MountedVolume],
    env: Mapping[str, str],
    *,
    owner: int | None = None,
) -> list[Mount]:
    """What *container* mounts where; a sub-path that is not there becomes a folder.

    Raises:
        ConfigError: a volume is unknown, or a sub-path leads out of it.
    """
    mounts = []
    for wanted in container.volume_mounts:
        volume = volumes.get(wanted.name)
        if volume is None:
            raise ContainerConfigError(f"no volume named {wanted.name!r}")
        below = expand(wanted.sub_path_expr, env) if wanted.sub_path_expr else wanted.sub_path
        if below:
            make_sub_path(str(volume.path), below, owner=owner)
        target = os.path.normpath("/" + wanted.mount_path.lstrip("/"))
        read_only = wanted.read_only or volume.read_only
        mounts.append(Mount(str(volume.path), target, read_only, below))
    return mounts


def link_mounts(root: Path, mounts: Iterable[Mount], *, pod: Path) -> None:
    """Without a sandbox: show each mount below *root* by a link.

    Raises:
        ConfigError: a mount lies inside another one that is not the pod's own.
    """
    for mount in sorted(mounts, key=lambda mount: mount.target.count("/")):
        place = root / mount.target.lstrip("/")
        real = os.path.realpath(place.parent)
        if not real.startswith(os.path.realpath(pod) + "/"):
            raise ContainerConfigError(
                f"without a sandbox nothing can be mounted at {mount.target}"
            )
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.is_symlink() or not place.exists():
            place.unlink(missing_ok=True)
            place.symlink_to(os.path.join(mount.source, mount.sub_path))
