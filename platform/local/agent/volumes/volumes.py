"""Volumes of a pod as directories on disk, and the mounts of each container.

Paths that a pod names are confined: `..` and links that lead out of a volume are errors.
`projected` writes the files of API objects.
"""

import errno
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..runtime import oom
from ..runtime.ids import Ids, chown, chown_tree
from ..runtime.memory_volumes import mount_volume
from ..runtime.mounting import NEXT_SUB_PATH, mkdir_beneath
from ..runtime.rootfs import Mount
from ..runtime.users import volume_owner
from ..state.core_types import Container, Pod, Volume
from ..state.environment import ContainerConfigError, PodRuntimeInfo, ResolvedSources, expand
from . import host_dirs
from .host_dirs import HostDir
from .projected import atomic_write, collect_files, projections, secret_name

_FILES = ("File", "FileOrCreate", "Socket", "CharDevice", "BlockDevice")
"""Types of a `hostPath` that are no directories."""

_MEMORY_FRACTION, _MIN_MEMORY_VOLUME = 8, 1 << 20


def pvc_dir(base: Path, *, namespace: str, name: str, uid: str) -> Path:
    """Return the directory of a claim; a later claim of the same name has another one."""
    return base / f"{namespace}_{name}_{uid}"


def _uid_of(directory: Path) -> str:
    return directory.name.rpartition("_")[2]


class VolumeError(Exception):
    """A volume cannot be set up; the text is for an event."""

    def __init__(self, volume: str, problem: str) -> None:
        super().__init__(f'MountVolume.SetUp failed for volume "{volume}" : {problem}')


@dataclass(frozen=True, slots=True)
class PodReferences:
    """The objects that a pod's environment and volumes refer to."""

    config_maps: frozenset[str]
    secrets: frozenset[str]
    claims: frozenset[str]
    tokens: frozenset[tuple[str, int]]
    """Audience and expiration seconds of each service account token."""

    uses_downward_api: bool
    """Whether files contain fields of the pod, which may change."""

    @property
    def can_change(self) -> bool:
        """Whether any of them may change while the pod runs."""
        return bool(self.config_maps or self.secrets or self.tokens or self.uses_downward_api)


def references_of(pod: Pod) -> PodReferences:
    """Return the objects to fetch before *pod* can start."""
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
    projected = [source for volume in pod.spec.volumes for source in projections(volume)]
    claims = [pod.claim_of(volume) for volume in pod.spec.volumes]
    tokens = [each.service_account_token for each in projected if each.service_account_token]
    return PodReferences(
        frozenset(config_maps | {each.config_map.name for each in projected if each.config_map}),
        frozenset(secrets | {secret_name(each.secret) for each in projected if each.secret}),
        frozenset(c.claim_name for c in claims if c),
        frozenset((token.audience, token.expiration_seconds) for token in tokens),
        any(each.downward_api for each in projected),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumePaths:
    """Directories of volumes on this machine."""

    pod_dir: Path
    """The pod's directory."""

    pvc_root: Path
    """Parent of the directories of PersistentVolumeClaims."""

    host_dirs: tuple[HostDir, ...] = ()
    """Directories of the host that pods may mount; none by default."""

    ids: Ids = field(default_factory=Ids)
    """Owner of the volumes."""

    memory: int = 0
    """Memory of the node in bytes; 0: no volume can be in memory."""


@dataclass(frozen=True, slots=True)
class MountedVolume:
    """A volume on disk."""

    path: Path
    read_only: bool = False
    """Whether all mounts of it are read-only."""

    inside: str | None = None
    """Path of the volume below *path*, a directory of the host or the files of an image, in which
    others may have put links; ``None``: the volume is a directory of the agent."""


def set_up_volumes(
    pod: Pod, *, paths: VolumePaths, sources: ResolvedSources, info: PodRuntimeInfo
) -> Mapping[str, MountedVolume]:
    """Create or update every volume of *pod*, keeping what its containers wrote; return the paths.

    Raises:
        VolumeError: a source is missing or not permitted.
    """
    builder = _VolumeBuilder(pod, paths, sources, info)
    return {volume.name: builder.build(volume) for volume in pod.spec.volumes}


@dataclass(frozen=True, slots=True)
class _VolumeBuilder:
    pod: Pod
    paths: VolumePaths
    sources: ResolvedSources
    info: PodRuntimeInfo

    def build(self, volume: Volume) -> MountedVolume:
        if volume.host_path:
            return self._host_path(volume.name, volume.host_path.path, kind=volume.host_path.type)
        if claim := self.pod.claim_of(volume):
            return self._claim(volume.name, claim.claim_name, read_only=claim.read_only)
        directory = self.paths.pod_dir / "volumes" / _plain_name(volume.name)
        if volume.image is not None:  # each container mounts the image there, for itself
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            return MountedVolume(directory, read_only=True, inside="")
        if volume.empty_dir is not None:
            self._pod_owned_dir(directory)
            if is_memory_backed(volume) and self.paths.memory:
                size = memory_volume_size(self.pod, volume, node_memory=self.paths.memory)
                mount_volume(directory, size=size, owner=self.paths.ids.base)
            return MountedVolume(directory)
        if not projections(volume) and volume.projected is None:
            raise VolumeError(volume.name, "unsupported volume type")
        try:
            files = collect_files(volume, self.pod, sources=self.sources, info=self.info)
        except ContainerConfigError as error:
            raise VolumeError(volume.name, str(error)) from error
        owner = self.paths.ids.owner(volume_owner(self.pod))
        atomic_write(_shared_dir(directory, self.paths.ids.base), files, owner=owner)
        return MountedVolume(directory, read_only=True)

    def _claim(self, volume: str, name: str, *, read_only: bool) -> MountedVolume:
        bound = self.sources.claims.get(name)
        if bound is None:
            raise VolumeError(volume, f'persistentvolumeclaim "{name}" not found')
        if bound.error:
            raise VolumeError(volume, bound.error)
        read_only = read_only or bound.read_only
        if bound.host_path:
            kind = bound.host_path_type
            return self._host_path(volume, bound.host_path, kind=kind, read_only=read_only)
        if bound.handle != bound.uid:
            return MountedVolume(self._retained_dir(volume, bound.handle), read_only)
        namespace = self.pod.metadata.namespace
        path = pvc_dir(self.paths.pvc_root, namespace=namespace, name=name, uid=bound.uid)
        return MountedVolume(self._pod_owned_dir(path), read_only)

    def _retained_dir(self, volume: str, handle: str) -> Path:
        """Return the directory of a deleted claim."""
        found = [each for each in self.paths.pvc_root.glob("*_*_*") if _uid_of(each) == handle]
        if not found:
            raise VolumeError(volume, f"directory {handle!r} not found on this node")
        return self._pod_owned_dir(found[0])

    def _pod_owned_dir(self, directory: Path) -> Path:
        """Create a directory that the pod owns, with all files of an earlier agent in it."""
        chown_tree(_shared_dir(directory, self.paths.ids.base), self.paths.ids.base)
        return directory

    def _host_path(
        self, name: str, path: str, *, kind: str = "", read_only: bool = False
    ) -> MountedVolume:
        found = host_dirs.find(self.paths.host_dirs, path)
        if found is None:
            # A file is permitted by its directory.
            wanted = os.path.dirname(path) if kind in _FILES else path
            why = host_dirs.never_permitted(os.path.normpath(wanted))
            if why:
                raise VolumeError(name, f"hostPath {wanted}: {why}")
            raise VolumeError(
                name,
                f"hostPath {path} is not below a directory that pods may mount; "
                f"`batholith up --mount {wanted}` permits it (read-only: --mount {wanted}:ro)",
            )
        directory, inside = found
        try:
            problem = host_dirs.prepare(directory, inside, kind, owner=self.paths.ids.base)
        except OSError as error:
            raise VolumeError(name, f"hostPath {path}: {error.strerror}") from error
        if problem:
            raise VolumeError(name, f"hostPath type check failed: {path} {problem}")
        return MountedVolume(Path(directory.path), read_only or directory.read_only, inside)


def is_memory_backed(volume: Volume) -> bool:
    """Return whether *volume* is to be in memory."""
    return volume.empty_dir is not None and volume.empty_dir.medium == "Memory"


def memory_volume_size(pod: Pod, volume: Volume, *, node_memory: int) -> int:
    """Return the maximum bytes of a volume in memory.

    It is the size limit, at most the memory limit of the pod. A pod without either gets a part of
    the node's memory, so that it cannot take all.
    """
    limits = [oom.limit_of(each.resources) for each in pod.spec.containers]
    known = [each for each in limits if each is not None]
    most = min(sum(known), node_memory) if len(known) == len(limits) else None
    asked = volume.empty_dir.size_limit if volume.empty_dir else None
    if asked:
        return max(min(oom.bytes_of(asked), most or node_memory), _MIN_MEMORY_VOLUME)
    return max(most or node_memory // _MEMORY_FRACTION, _MIN_MEMORY_VOLUME)


def create_sub_path(volume: MountedVolume, name: str, *, owner: int | None) -> None:
    """Create the directory *name* in *volume* unless it exists.

    All users may write to it, unless other users of the host can reach it.

    A container may replace it at any time, so that it is resolved again when it is mounted.

    Raises:
        ContainerConfigError: it is absolute, contains ``..``, or a link leads out of the directory.
    """
    if name.startswith("/") or ".." in name.split("/"):
        raise ContainerConfigError(f"the path {name!r} must be relative and must not contain '..'")
    mode = 0o777 if volume.inside is None else 0o755
    try:
        mkdir_beneath(str(volume.path), name, within=volume.inside or "", mode=mode, owner=owner)
    except OSError as error:
        if error.errno in (errno.EXDEV, errno.ELOOP):
            raise ContainerConfigError(f"the path {name!r} leads out of its volume") from error
        raise ContainerConfigError(f"the path {name!r} cannot be used: {error.strerror}") from error


def _shared_dir(path: Path, owner: int | None) -> Path:
    """Create a directory that any user may write, below directories that only the agent enters."""
    if not path.is_dir():  # a container may have changed the mode of an existing one
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.chmod(0o777)
        chown(path, owner)
    return path


def _plain_name(name: str) -> str:
    if "/" in name or name in ("", ".", ".."):
        raise VolumeError(name, "invalid volume name")
    return name


def container_mounts(
    container: Container,
    volumes: Mapping[str, MountedVolume],
    env: Mapping[str, str],
    *,
    owner: int | None = None,
) -> list[Mount]:
    """Return the mounts of *container*; create sub-paths that do not exist.

    Raises:
        ContainerConfigError: a volume is unknown, or a sub-path leads out of it.
    """
    mounts = []
    for mount in container.volume_mounts:
        volume = volumes.get(mount.name)
        if volume is None:
            raise ContainerConfigError(f"no volume named {mount.name!r}")
        sub_path = expand(mount.sub_path_expr, env) if mount.sub_path_expr else mount.sub_path
        if sub_path and not (volume.inside is not None and volume.read_only):
            create_sub_path(volume, sub_path, owner=owner)
        target = os.path.normpath("/" + mount.mount_path.lstrip("/"))
        read_only = mount.read_only or volume.read_only
        steps = NEXT_SUB_PATH.join(filter(None, (volume.inside, sub_path)))
        mounts.append(Mount(str(volume.path), target, read_only, steps))
    return mounts


def link_mounts(root: Path, mounts: Iterable[Mount], *, pod: Path) -> None:
    """Link each mount below *root*, without a sandbox.

    Raises:
        ContainerConfigError: a mount is inside another one that does not belong to the pod.
    """
    for mount in sorted(mounts, key=lambda mount: mount.target.count("/")):
        path = root / mount.target.lstrip("/")
        real = os.path.realpath(path.parent)
        if not real.startswith(os.path.realpath(pod) + "/"):
            raise ContainerConfigError(
                f"without a sandbox nothing can be mounted at {mount.target}"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_symlink() or not path.exists():
            path.unlink(missing_ok=True)
            path.symlink_to(os.path.join(mount.source, *mount.sub_path.split(NEXT_SUB_PATH)))
