"""Launch specs of containers that run images."""

import os
from collections.abc import Sequence
from pathlib import Path

from ...network.resolvers import RESOLVER
from ..images.process import command_line, image_environment, image_user
from ..images.store import StoredImage
from ..runtime import rights, rootfs
from ..runtime.rootfs import Mount
from ..runtime.runs import POD_VARIABLE, IsolationLevel, LaunchSpec, RunDir
from ..runtime.users import User
from ..state.core_types import Container
from ..state.environment import expand_all
from ..volumes.volumes import container_mounts
from .launch_spec import (
    LaunchSpecBuilder,
    forbidden_mount,
    max_processes,
    stop_signal,
    termination_message_mount,
)


class ImageSpecBuilder(LaunchSpecBuilder):
    """Builds the launch specs of containers that run images."""

    def build_of_image(
        self, container: Container, run: RunDir, log: Path, *, image: StoredImage
    ) -> LaunchSpec:
        """Return the launch spec of *run*.

        Raises:
            ContainerConfigError: the container's configuration is invalid or unsupported.
        """
        node, ids = self.node, self.node.allocate_ids(self.pod)
        found = image_user(self.pod, container, image)
        user = User(found.uid, found.gid, found.is_requested)
        rights.check_security_context(
            self.pod, container, user,
            isolation=IsolationLevel.UNSHARE, id_mode=node.id_mode, agent_uid=os.geteuid(),
            own_network=bool(node.namespace_of(self.pod)),
        )  # fmt: skip
        base = image_environment(image, found.home) | self._service_variables()
        base |= {"HOSTNAME": self.pod.hostname, POD_VARIABLE: self.pod.metadata.uid}
        env = self._environment(container, base)
        command = expand_all(container.command, env)
        args = expand_all(container.args, env)
        directory = container.working_dir or image.process.working_dir or ""
        directory = os.path.normpath("/" + directory.lstrip("/"))
        mount_error, mounts = forbidden_mount(container), list[Mount]()
        if not mount_error:
            mounts = container_mounts(container, self.volumes.volumes, env, owner=ids.base)
        return LaunchSpec(
            argv=command_line(image, command, args),
            env=env,
            cwd=directory,
            log=log,
            hostname=self.pod.hostname,
            isolation=IsolationLevel.UNSHARE,
            user=(user.uid, user.gid),
            ids=ids,
            capabilities=rights.capabilities(container),
            steps=self._image_steps(container, run, mounts),
            tmpfs_size=self._tmpfs_size(container),
            stdin=container.stdin,
            stdin_once=container.stdin_once,
            tty=container.tty,
            stop_signal=stop_signal(container, image.process.stop_signal),
            max_processes=max_processes(),
            resources=container.resources,
            error=mount_error,
            image=node.images.run_image(
                image,
                working_dir=directory,
                read_only=container.security_context.read_only_root_filesystem,
            ),
        )

    def _image_steps(
        self, container: Container, run: RunDir, mounts: Sequence[Mount]
    ) -> list[rootfs.Step]:
        """Return the mounts of the pod, and of the files that every container has."""
        pod_dir = self.volumes.pod_dir
        own = [
            Mount(str(pod_dir / "hosts"), "/etc/hosts"),
            Mount(str(pod_dir / "hostname"), "/etc/hostname", read_only=True),
            termination_message_mount(container, run),
        ]
        if os.path.exists(source := self._resolver_file()):
            own.append(Mount(source, RESOLVER, read_only=True))
        targets = {mount.target for mount in mounts}
        every = [*(mount for mount in own if mount.target not in targets), *mounts]
        every.sort(key=lambda mount: mount.target.count("/"))
        files = self.node.devices.files(self.pod.metadata.uid, container.name)
        devices: list[rootfs.Step] = [("device", source, path, "") for source, path in files]
        return devices + [
            ("ro" if mount.read_only else "rw", mount.source, mount.target, mount.sub_path)
            for mount in every
        ]
