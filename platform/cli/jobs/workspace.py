"""What the pods of a submitted job have of the caller's working directory."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...model.names import DEFAULT_QUEUE
from ..submit.errors import SubmitError
from ..submit.manifest import Workspace
from ..submit.options import SubmitOptions
from ..submit.packing import pack
from .shared import IN_PROCESS

if TYPE_CHECKING:
    from ...client import Client
    from ...local.supervisor.supervisor import UpState

LOCAL_IMAGE = "batholith.io/local"
"""Image of pods whose programs are those of this machine."""


def find_workspace(
    options: SubmitOptions, client: "Client", connection: Mapping[str, Any]
) -> Workspace:
    """Return where a job of *client* runs.

    A cluster of `batholith up` on this machine mounts the working directory, with the Kubernetes
    API alone it is packed, and another REST API does not have it. *connection* has the values of
    the flags that choose the cluster.

    Raises:
        SubmitError: the directory cannot be used as asked for.
    """
    found = _find(options, client.url, connection)
    if options.image or found.image:
        return found
    return replace(found, image=_default_image(client, options.queue or DEFAULT_QUEUE))


def _default_image(client: "Client", queue: str) -> str:
    """Return the image that *queue* has for jobs without one; empty if it may not be read."""
    from ...client.errors import ForbiddenError, NotFoundError

    try:
        return client.queues.get(queue).default_image
    except (ForbiddenError, NotFoundError):
        return ""


def _packed(options: SubmitOptions, submit_dir: str) -> Workspace:
    """Return the working directory as an archive."""
    if options.no_workdir:
        return Workspace(submit_dir=submit_dir)
    if options.workdir_rw:
        where = options.where("workdir-rw")
        raise SubmitError([f"{where} is not supported: the job has a copy, which is not kept"])
    directory = os.path.abspath(options.chdir) if options.chdir else submit_dir
    if not os.path.isdir(directory):
        raise SubmitError([f"{options.where('chdir')}: {directory} is no directory"])
    return Workspace(submit_dir=submit_dir, workdir=directory, archive=pack(Path(directory)))


def _find(options: SubmitOptions, url: str, connection: Mapping[str, Any]) -> Workspace:
    submit_dir = os.getcwd()
    if url == IN_PROCESS:
        return _packed(options, submit_dir)
    state = _embedded_cluster(url, connection)
    if state is None:
        problems = [
            f"{options.where(name)} is not supported: only a cluster of `batholith up` on this"
            " machine has the working directory"
            for name, given in (
                ("workdir-rw", options.workdir_rw),
                ("no-workdir", options.no_workdir),
                ("chdir", options.chdir and not options.chdir.startswith("/")),
            )
            if given
        ]
        if problems:
            raise SubmitError(problems)
        return Workspace(submit_dir=submit_dir)
    if options.no_workdir:
        if options.workdir_rw:
            raise SubmitError([f"{options.where('workdir-rw')}: --no-workdir excludes it"])
        return Workspace(submit_dir=submit_dir, image=LOCAL_IMAGE)
    directory = os.path.abspath(options.chdir) if options.chdir else submit_dir
    _check_mount(directory, state, options)
    return Workspace(
        submit_dir=submit_dir,
        workdir=directory,
        writable=options.workdir_rw,
        image=LOCAL_IMAGE,
    )


def _check_mount(directory: str, state: "UpState", options: SubmitOptions) -> None:
    from ...local.agent.volumes.host_dirs import HostDir, find

    where = options.where("chdir") if options.chdir else "the working directory"
    if not os.path.isdir(directory):
        raise SubmitError([f"{where}: {directory} is no directory"])
    found = find([HostDir.parse(each) for each in state.mounts], directory)
    if found is None:
        raise SubmitError(
            [
                f"{where}: pods may not mount {directory}: start the cluster with `batholith up"
                " --mount DIR`, or use --no-workdir"
            ]
        )
    if options.workdir_rw and found[0].read_only:
        text = f"pods may only read {found[0].path}: start the cluster with `batholith up --mount`"
        raise SubmitError([f"{options.where('workdir-rw')}: {text}"])


def _embedded_cluster(url: str, connection: Mapping[str, Any]) -> "UpState | None":
    """Return the state of the cluster on this machine that has this address."""
    from ...local.supervisor.datadir import DataDir
    from ...local.supervisor.supervisor import DamagedStateError, read_state

    for directory in _data_dirs(connection):
        try:
            state = read_state(DataDir(directory))
        except (OSError, DamagedStateError):  # not that of the client, which has read its own
            continue
        if (
            state is not None
            and state.supervisor.is_alive
            and url == f"http://127.0.0.1:{state.ports.get('rest')}"
        ):
            return state
    return None


def _data_dirs(connection: Mapping[str, Any]) -> Iterator[Path]:
    """Yield the directories in which the client may have found the address."""
    from ...client.discovery import default_data_dir
    from ...model.kubeconfig import default_paths

    if connection.get("data_dir") is not None:
        yield Path(connection["data_dir"])
    given = connection.get("kubeconfig")
    for path in [Path(given)] if given is not None else default_paths():
        yield path.parent
    yield default_data_dir()
