"""From a container's specification to the run that stands in for it."""

import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..runtime import images, interpreters, rights, rootfs, users
from ..runtime.ids import IdMode, chown
from ..runtime.mounting import open_regular
from ..runtime.rootfs import Mount
from ..runtime.runs import POD_VARIABLE, PYTHON_PREFIXES, IsolationLevel, LaunchSpec, RunDir
from ..state import hosts
from ..state.core_types import Container, Pod
from ..state.environment import ContainerConfigError, PodRuntimeInfo, build_environment, expand
from ..volumes.volumes import container_mounts, link_mounts
from .node_context import HOST_IP, NodeContext
from .volume_manager import PodVolumes

HIDDEN_FILES = (
    "/etc/shadow",
    "/etc/gshadow",
    "/etc/shadow-",
    "/etc/gshadow-",
    "/etc/ssh",
    "/etc/sudoers",
)
"""What only root may read; hidden where pods are root on the machine."""

_MESSAGE_LIMIT = 4096
_FALLBACK_LINES, _FALLBACK_BYTES = 80, 2048
_LOG_TAIL_BYTES = 16 * 1024
"""Bytes of a log that are looked at for what happened last."""

_PORT_IN_USE_MESSAGES = ("address already in use", "eaddrinuse", "port is already allocated")


@dataclass(frozen=True, slots=True)
class LaunchSpecBuilder:
    """Builds the launches of one pod."""

    pod: Pod
    node: NodeContext
    volumes: PodVolumes

    def build(self, container: Container, run: RunDir, log: Path) -> tuple[LaunchSpec, str]:
        """What *run* shall execute, and a complaint if the command is not on this machine.

        Raises:
            ConfigError: the container cannot be configured as it asks.
        """
        facts = PodRuntimeInfo(
            pod_ip=self.volumes.ip, host_ip=HOST_IP, allocatable=self.node.allocatable
        )
        user = users.user_of(self.pod, container)
        machine, ids = self.node, self.node.allocate_ids(self.pod)
        rights.check_security_context(
            self.pod, container, user,
            isolation=machine.isolation, id_mode=machine.id_mode, agent_uid=os.geteuid(),
        )  # fmt: skip
        base = self._base_environment(run, users.container_user(user, ids))
        env = build_environment(
            self.pod, container, sources=self.volumes.sources, info=facts, base=base
        )
        mounts = container_mounts(container, self.volumes.volumes, env, owner=ids.base)
        argv, complaint = self._argv(container, env, mounts)
        directory = container.working_dir or "/"
        steps: list[rootfs.Step] = []
        if machine.isolation is IsolationLevel.PLAIN:
            directory = self._without_sandbox(run, mounts, directory)
        else:
            owner = ids.owner(user.uid)
            of_run = [
                _termination_message_mount(container, run, owner),
                *users.passwd_mounts(user, run.path, ids),
            ]
            mounts += _working_mount(directory, mounts, run, owner)
            steps = self._rootfs_steps(of_run, mounts, container)
        return LaunchSpec(
            argv=argv,
            env=env,
            cwd=directory,
            log=log,
            hostname=self.pod.hostname,
            isolation=machine.isolation,
            user=(user.uid, user.gid),
            ids=ids,
            capabilities=rights.capabilities(container),
            steps=steps,
        ), complaint

    def _base_environment(self, run: RunDir, user: users.User) -> dict[str, str]:
        """The variables that come before the pod's own."""
        plain = self.node.isolation is IsolationLevel.PLAIN
        env = {"PATH": interpreters.search_path(os.environ, sandboxed=not plain)}
        env |= {"HOSTNAME": self.pod.hostname, POD_VARIABLE: self.pod.metadata.uid}
        env["HOME"] = str(run.path / "root") if plain else user.home
        if plain:
            env["BATHOLITH_ROOT"] = str(run.path / "root")
            env["BATHOLITH_HOSTS"] = str(self.volumes.pod_dir / "hosts")
            env["TMPDIR"] = str(run.path / "root" / "tmp")
        host, colon, port = self.node.settings.api_address.rpartition(":")
        if colon:
            env |= {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
        if self.pod.spec.enable_service_links is not False:
            services = self.node.services(self.pod.metadata.namespace)
            env = hosts.service_variables(services) | env
        return env

    def _argv(
        self, container: Container, env: Mapping[str, str], mounts: Sequence[Mount]
    ) -> tuple[Sequence[str], str]:
        command = [expand(word, env) for word in container.command]
        args = [expand(word, env) for word in container.args]
        places = tuple(f"{mount.target}/" for mount in mounts)

        def find(program: str) -> str | None:
            if program.startswith(places):
                return program  # it may well lie in a volume
            return shutil.which(program, path=env.get("PATH"))

        try:
            return images.command_line(container.image, command, args, find=find), ""
        except images.ProgramNotFoundError as error:
            # The run fails at its start, as it would in an image without the program.
            return [*command, *args], str(error)

    def _without_sandbox(self, run: RunDir, mounts: Sequence[Mount], directory: str) -> str:
        root = run.path / "root"
        (root / "tmp").mkdir(parents=True, exist_ok=True)
        link_mounts(root, mounts, pod=self.volumes.pod_dir)
        inside = root / os.path.normpath("/" + directory).lstrip("/")
        inside.mkdir(parents=True, exist_ok=True)
        return str(inside)

    def _rootfs_steps(
        self, run_mounts: Sequence[Mount], mounts: Sequence[Mount], container: Container
    ) -> list[rootfs.Step]:
        folder = self.volumes.pod_dir
        own = [
            Mount(str(folder / "hosts"), "/etc/hosts"),
            Mount(str(folder / "hostname"), "/etc/hostname", read_only=True),
            *run_mounts,
        ]
        resolver = os.path.realpath("/etc/resolv.conf")
        if resolver.startswith("/run/"):
            own.append(Mount(resolver, resolver, read_only=True))
        taken = {mount.target for mount in mounts}
        hidden = [os.path.realpath(self.node.settings.data_dir)]
        home = os.path.expanduser("~")
        own = [mount for mount in own if mount.target not in taken]
        ranges = self.node.id_mode is not IdMode.OWN
        if os.geteuid() == 0 and not ranges:
            hidden += filter(os.path.exists, HIDDEN_FILES)
        shown = interpreters.find(os.environ).mounted_dirs
        steps = rootfs.mount_plan(
            [*own, *mounts],
            hidden=hidden,
            home=home,
            visible=shown,
            tools=(*PYTHON_PREFIXES, *shown) if ranges else (),
            read_only_root=container.security_context.read_only_root_filesystem,
        )
        if not self.node.safe_paths and rootfs.stage_plan(steps, "")[0]:
            raise ContainerConfigError(
                "subPath, and mounts inside other mounts, take user namespaces of ours, which "
                "this machine permits to bubblewrap alone"
            )
        return steps


def _working_mount(
    directory: str, mounts: Sequence[Mount], run: RunDir, owner: int | None
) -> list[Mount]:
    """A folder to work in where the machine has none, as a runtime would make it."""
    held = any(f"{directory}/".startswith(f"{mount.target}/") for mount in mounts)
    if held or os.path.isdir(directory):
        return []
    folder = run.path / "work"
    folder.mkdir(parents=True, exist_ok=True)
    chown(folder, owner)
    return [Mount(str(folder), os.path.normpath("/" + directory))]


def _termination_message_mount(container: Container, run: RunDir, owner: int | None) -> Mount:
    """Where the container may leave a message about its end."""
    message = run.path / "termination-log"
    message.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    message.touch()
    chown(message, owner)
    return Mount(str(message), _message_path(container))


def _message_path(container: Container) -> str:
    # /dev is made after everything else; the usual place in it is a link to this one.
    path = container.termination_message_path or "/dev/termination-log"
    return "/run/termination-log" if path.startswith("/dev/") else path


def termination_message(container: Container, run: RunDir, log: Path, *, failed: bool) -> str:
    """What the container left as its last words."""
    with (
        suppress(OSError),  # there is none, or something else lies there by now
        os.fdopen(open_regular(str(run.path / "termination-log")), "rb") as opened,
    ):
        text = opened.read(_MESSAGE_LIMIT).decode(errors="replace")
        if text:
            return text
    if failed and container.termination_message_policy == "FallbackToLogsOnError":
        return "\n".join(_last_lines(log)[-_FALLBACK_LINES:])[-_FALLBACK_BYTES:]
    return ""


def log_shows_port_in_use(log: Path) -> bool:
    """Whether the end of a log complains of a port that somebody else listens at."""
    words = "\n".join(_last_lines(log)).lower()
    return any(complaint in words for complaint in _PORT_IN_USE_MESSAGES)


def _last_lines(log: Path) -> list[str]:
    """What was written last, without times and streams."""
    try:
        with os.fdopen(open_regular(str(log)), "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _LOG_TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:  # nothing was logged, or something else lies there by now
        return []
    return [parts[3] for line in lines if len(parts := line.split(" ", 3)) == 4]
