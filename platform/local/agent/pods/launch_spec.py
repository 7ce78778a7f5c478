"""Launch specs: what the shim executes for a container."""

import os
import pwd
import shutil
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ...network.resolvers import RESOLVER, resolver_file
from ..runtime import images, interpreters, oom, rights, rootfs, users
from ..runtime.ids import IdMode, chown
from ..runtime.mounting import open_regular
from ..runtime.rootfs import Mount
from ..runtime.runs import (
    POD_VARIABLE,
    PYTHON_PREFIXES,
    TERMINATION_LOG,
    IsolationLevel,
    LaunchSpec,
    RunDir,
)
from ..runtime.stop_signals import signal_number
from ..state import hosts
from ..state.core_types import Container, FileKeySelector, Pod, Service
from ..state.environment import ContainerConfigError, PodRuntimeInfo, build_environment, expand_all
from ..volumes.env_files import read_variable
from ..volumes.volumes import container_mounts, link_mounts
from .node_context import NodeContext
from .volume_manager import PodVolumes

HIDDEN_FILES = (
    "/etc/shadow",
    "/etc/gshadow",
    "/etc/shadow-",
    "/etc/gshadow-",
    "/etc/ssh",
    "/etc/sudoers",
)
"""Files that only root may read; hidden where pods run as root of the host."""

_TMPFS_FRACTION = 8
"""Each tmpfs of a container without memory limit has the node's memory divided by this."""

_MIN_TMPFS_SIZE = 1 << 20
_PROCESS_LIMITS = ("threads-max", "pid_max")
_PROCESS_FRACTION, _MIN_PROCESSES = 8, 1024
_MESSAGE_LIMIT = 4096
_FALLBACK_LINES, _FALLBACK_BYTES = 80, 2048
_LOG_TAIL_BYTES = 16 * 1024
"""Bytes at the end of a log that are searched for its last lines."""

_PORT_IN_USE_MESSAGES = ("address already in use", "eaddrinuse", "port is already allocated")


@dataclass(frozen=True, slots=True)
class LaunchSpecBuilder:
    """Builds the launch specs of one pod."""

    pod: Pod
    node: NodeContext
    volumes: PodVolumes

    def build(self, container: Container, run: RunDir, log: Path) -> tuple[LaunchSpec, str]:
        """Return the launch spec of *run*, and an error message if its program is not found.

        Raises:
            ContainerConfigError: the container's configuration is invalid or unsupported.
        """
        user = users.user_of(self.pod, container)
        node, ids = self.node, self.node.allocate_ids(self.pod)
        rights.check_security_context(
            self.pod, container, user,
            isolation=node.isolation, id_mode=node.id_mode, agent_uid=os.geteuid(),
            own_network=bool(node.namespace_of(self.pod)),
        )  # fmt: skip
        base = self._base_environment(run, users.container_user(user, ids))
        env = self._environment(container, base)
        mount_error, mounts = forbidden_mount(container), []
        if not mount_error:
            mounts = container_mounts(container, self.volumes.volumes, env, owner=ids.base)
        argv, error_message = self._argv(container, env, mounts)
        directory = container.working_dir or "/"
        steps: list[rootfs.Step] = []
        if node.isolation is IsolationLevel.PLAIN:
            directory = self._plain_working_dir(run, mounts, directory)
        else:
            owner = ids.owner(user.uid)
            run_mounts = [
                termination_message_mount(container, run),
                *users.passwd_mounts(user, run.path, ids),
            ]
            mounts += _working_mount(directory, mounts, run, owner)
            steps = self._rootfs_steps(run_mounts, mounts, container)
        return LaunchSpec(
            argv=argv,
            env=env,
            cwd=directory,
            log=log,
            hostname=self.pod.hostname,
            isolation=node.isolation,
            user=(user.uid, user.gid),
            ids=ids,
            capabilities=rights.capabilities(container),
            steps=steps,
            tmpfs_size=self._tmpfs_size(container),
            stdin=container.stdin,
            stdin_once=container.stdin_once,
            tty=container.tty,
            stop_signal=stop_signal(container),
            max_processes=max_processes(),
            resources=container.resources,
            error=mount_error,
            can_stage=node.safe_paths,
        ), mount_error or error_message

    def _environment(self, container: Container, base: Mapping[str, str]) -> dict[str, str]:
        """Return the variables of a container; its own override those of *base*."""
        node = self.node
        info = PodRuntimeInfo(
            pod_ip=self.volumes.ip, host_ip=node.host_ip, allocatable=node.allocatable
        )
        terminal = {"TERM": "xterm"} if container.tty else {}
        devices = node.devices.environment(self.pod.metadata.uid, container.name)
        return build_environment(
            self.pod,
            container,
            sources=self.volumes.sources,
            info=info,
            base={**base, **terminal, **devices},
            read_file=self._read_file,
        )

    def _read_file(self, ref: FileKeySelector) -> str | None:
        return read_variable(self.volumes.volumes.get(ref.volume_name), ref)

    def _tmpfs_size(self, container: Container) -> int:
        """Return the bytes of each tmpfs: the memory limit, or a part of the node's memory."""
        memory = oom.bytes_of(self.node.allocatable["memory"])
        limit = oom.limit_of(container.resources)
        size = memory // _TMPFS_FRACTION if limit is None else min(limit, memory)
        return max(size, _MIN_TMPFS_SIZE)

    def _base_environment(self, run: RunDir, user: users.User) -> dict[str, str]:
        """Return the variables that the pod's own may override."""
        plain = self.node.isolation is IsolationLevel.PLAIN
        env = {"PATH": interpreters.search_path(os.environ, sandboxed=not plain)}
        env |= {"HOSTNAME": self.pod.hostname, POD_VARIABLE: self.pod.metadata.uid}
        env["HOME"] = str(run.path / "root") if plain else user.home
        if plain:
            env["BATHOLITH_ROOT"] = str(run.path / "root")
            env["BATHOLITH_HOSTS"] = str(self.volumes.pod_dir / "hosts")
            env["TMPDIR"] = str(run.path / "root" / "tmp")
        return self._service_variables() | env

    def _service_variables(self) -> dict[str, str]:
        """Return the variables of the API server, and of the services of the pod's namespace."""
        services: list[Service] = []
        if self.pod.spec.enable_service_links is not False:
            found = self.node.services(self.pod.metadata.namespace)
            services += [each for each in found if each.metadata.key != hosts.API_SERVER_SERVICE]
        found = self.node.services(hosts.API_SERVER_SERVICE.partition("/")[0])
        services += [each for each in found if each.metadata.key == hosts.API_SERVER_SERVICE]
        return hosts.service_variables(services)

    def _argv(
        self, container: Container, env: Mapping[str, str], mounts: Sequence[Mount]
    ) -> tuple[Sequence[str], str]:
        command = expand_all(container.command, env)
        args = expand_all(container.args, env)
        mount_paths = tuple(f"{mount.target}/" for mount in mounts)

        def find(program: str) -> str | None:
            if program.startswith(mount_paths):
                return program  # may be in a volume
            return shutil.which(program, path=env.get("PATH"))

        def is_installed(program: str) -> bool:
            # A relative path would be that of a file in the agent's own working directory.
            is_relative_path = "/" in program and not program.startswith("/")
            return not is_relative_path and bool(shutil.which(program, path=env.get("PATH")))

        try:
            argv = images.command_line(
                container.image,
                command,
                args,
                find=find,
                is_installed=is_installed,
                interactive=container.stdin,
            )
            return argv, ""
        except images.ProgramNotFoundError as error:
            # The start of the run fails, as with an image that lacks the program.
            return [*command, *args], str(error)

    def _plain_working_dir(self, run: RunDir, mounts: Sequence[Mount], directory: str) -> str:
        root = run.path / "root"
        (root / "tmp").mkdir(parents=True, exist_ok=True)
        link_mounts(root, mounts, pod=self.volumes.pod_dir)
        inside = root / os.path.normpath("/" + directory).lstrip("/")
        inside.mkdir(parents=True, exist_ok=True)
        return str(inside)

    def _resolver_file(self) -> str:
        """Return the pod's own ``resolv.conf``, or else the file of the machine."""
        own = self.volumes.pod_dir / "resolv.conf"
        if own.exists():
            return str(own)
        return resolver_file(own_network=bool(self.node.namespace_of(self.pod)))

    def _rootfs_steps(
        self, run_mounts: Sequence[Mount], mounts: Sequence[Mount], container: Container
    ) -> list[rootfs.Step]:
        pod_dir = self.volumes.pod_dir
        own = [
            Mount(str(pod_dir / "hosts"), "/etc/hosts"),
            Mount(str(pod_dir / "hostname"), "/etc/hostname", read_only=True),
            *run_mounts,
        ]
        resolver, source = os.path.realpath(RESOLVER), self._resolver_file()
        if resolver.startswith("/run/") or (os.path.exists(resolver) and source != resolver):
            own.append(Mount(source, resolver, read_only=True))
        targets = {mount.target for mount in mounts}
        hidden = [os.path.realpath(self.node.settings.data_dir)]
        home = os.path.expanduser("~")
        own = [mount for mount in own if mount.target not in targets]
        ranges = self.node.id_mode is not IdMode.OWN
        if os.geteuid() == 0 and not ranges:
            hidden += filter(os.path.exists, HIDDEN_FILES)
        visible = interpreters.find(os.environ).mounted_dirs
        steps = rootfs.mount_plan(
            [*own, *mounts],
            hidden=hidden,
            home=home,
            other_homes=_account_homes(),
            visible=visible,
            tools=(*PYTHON_PREFIXES, *visible) if ranges else (),
            read_only_root=container.security_context.read_only_root_filesystem,
            devices=self.node.devices.files(self.pod.metadata.uid, container.name),
        )
        if not self.node.safe_paths and rootfs.stage_plan(steps, "")[0]:
            raise ContainerConfigError(
                "subPath, hostPath below a permitted directory, and mounts inside other mounts "
                "need unprivileged user namespaces, which this machine permits only to bubblewrap"
            )
        return steps


@cache
def max_processes() -> int:
    """Return how many processes and threads one user of a container may have.

    It is a fraction of those that the kernel supports, so that no container takes them all.
    """
    found = [int(Path(f"/proc/sys/kernel/{name}").read_text()) for name in _PROCESS_LIMITS]
    return max(min(found) // _PROCESS_FRACTION, _MIN_PROCESSES)


def stop_signal(container: Container, default: str | None = None) -> int:
    """Return the signal that stops the container: its own, *default*, or SIGTERM.

    Raises:
        ContainerConfigError: there is no such signal.
    """
    name = container.lifecycle.stop_signal
    if not name:
        return signal_number(default or "SIGTERM") or signal.SIGTERM
    number = signal_number(name)
    if number is None:
        raise ContainerConfigError(f"container {container.name}: unknown stopSignal {name!r}")
    return number


def forbidden_mount(container: Container) -> str:
    """Return why the container cannot have what it mounts; empty if it can.

    Like container runtimes, which fail to start it: Kubernetes accepts such pods.
    """
    fields = {
        f"volumeMounts[{number}].mountPath": mount.mount_path
        for number, mount in enumerate(container.volume_mounts)
    }
    fields["terminationMessagePath"] = _message_path(container)
    for name, value in fields.items():
        path = os.path.normpath("/" + value.lstrip("/"))
        if path == "/":
            return f"{name}: {value!r}: the root directory of a container cannot be replaced"
        if f"{path}/".startswith("/proc/"):
            return f"{name}: {value!r}: nothing can be mounted at or below /proc"
    return ""


def _account_homes() -> list[str]:
    """Return the home of this user's account, which may differ from ``$HOME``."""
    try:
        return [pwd.getpwuid(os.geteuid()).pw_dir]
    except KeyError:
        return []


def _working_mount(
    directory: str, mounts: Sequence[Mount], run: RunDir, owner: int | None
) -> list[Mount]:
    """Mount an empty working directory if it does not exist, as container runtimes do."""
    in_volume = any(f"{directory}/".startswith(f"{mount.target}/") for mount in mounts)
    if in_volume or os.path.isdir(directory):
        return []
    source = run.path / "work"
    source.mkdir(parents=True, exist_ok=True)
    chown(source, owner)
    return [Mount(str(source), os.path.normpath("/" + directory))]


def termination_message_mount(container: Container, run: RunDir) -> Mount:
    """Mount the file that takes the container's termination message."""
    return Mount(str(run.path / TERMINATION_LOG), _message_path(container))


def _message_path(container: Container) -> str:
    # /dev is mounted last; the default path in it is a link to this one.
    path = container.termination_message_path or "/dev/termination-log"
    return "/run/termination-log" if path == "/dev/termination-log" else path


def termination_message(container: Container, run: RunDir, log: Path, *, failed: bool) -> str:
    """Return the container's termination message."""
    with (
        suppress(OSError),  # missing, or replaced by the container
        os.fdopen(open_regular(str(run.path / TERMINATION_LOG)), "rb") as opened,
    ):
        text = opened.read(_MESSAGE_LIMIT).decode(errors="replace")
        if text:
            return text
    if failed and container.termination_message_policy == "FallbackToLogsOnError":
        return "\n".join(_last_lines(log)[-_FALLBACK_LINES:])[-_FALLBACK_BYTES:]
    return ""


def log_shows_port_in_use(log: Path) -> bool:
    """Return whether the end of a log reports that a port is in use."""
    text = "\n".join(_last_lines(log)).lower()
    return any(message in text for message in _PORT_IN_USE_MESSAGES)


def _last_lines(log: Path) -> list[str]:
    """Return the last lines, without time and stream."""
    try:
        with os.fdopen(open_regular(str(log)), "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _LOG_TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:  # missing, or replaced by the container
        return []
    return [fields[3] for line in lines if len(fields := line.split(" ", 3)) == 4]
