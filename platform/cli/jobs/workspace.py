"""What the pods of a submitted job have of the caller's working directory."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ...model.names import DEFAULT_QUEUE, WORKDIR_CLAIM
from ...model.validation import dns1123_subdomain_error
from ..submit.errors import SubmitError
from ..submit.manifest import Claim, Workspace
from ..submit.options import SubmitOptions
from ..submit.packing import IN_CLAIM, IN_CONFIGMAPS, pack
from .shared import IN_PROCESS

if TYPE_CHECKING:
    from ...client import Client
    from ...local.supervisor.supervisor import UpState
    from ...wire.queues import Queue
    from .kubernetes import KubernetesClient

LOCAL_IMAGE = "batholith.io/local"
"""Image of pods whose programs are those of this machine."""


def find_workspace(
    options: SubmitOptions, client: "Client", connection: Mapping[str, Any]
) -> Workspace:
    """Return where a job of *client* runs.

    A cluster of `batholith up` on this machine mounts the working directory, for others it is
    packed. *connection* has the values of the flags that choose the cluster.

    Raises:
        SubmitError: the directory cannot be used as asked for.
    """
    found = _find(options, client, connection)
    if options.image or found.image:
        return found
    return replace(found, image=_default_image(client, options.queue or DEFAULT_QUEUE))


def _default_image(client: "Client", queue: str) -> str:
    """Return the image that *queue* has for jobs without one; empty if it may not be read."""
    found = _queue(client, queue)
    return "" if found is None else found.default_image


def _queue(client: "Client", name: str) -> "Queue | None":
    """Return a queue, if it exists and may be read."""
    from ...client.errors import ForbiddenError, NotFoundError

    try:
        return client.queues.get(name)
    except (ForbiddenError, NotFoundError):
        return None


def _packed(options: SubmitOptions, client: "Client", submit_dir: str) -> Workspace:
    """Return the working directory as an archive."""
    if options.workdir_rw:
        where = options.where("workdir-rw")
        raise SubmitError([f"{where} is not supported: the job has a copy, which is not kept"])
    if options.no_workdir:
        if options.chdir and not options.chdir.startswith("/"):
            where = options.where("chdir")
            raise SubmitError([f"{where}: a directory of the image needs its whole path"])
        return Workspace(submit_dir=submit_dir)
    directory = os.path.abspath(options.chdir) if options.chdir else submit_dir
    if not os.path.isdir(directory):
        raise SubmitError([f"{options.where('chdir')}: {directory} is no directory"])
    claim = None
    if client.url == IN_PROCESS:
        claim = _claim(options, cast("KubernetesClient", client))
    limits = IN_CONFIGMAPS if claim is None else IN_CLAIM
    archive = pack(Path(directory), limits)
    return Workspace(submit_dir=submit_dir, workdir=directory, archive=archive, claim=claim)


def _claim(options: SubmitOptions, client: "KubernetesClient") -> Claim | None:
    """Return the claim of the options or of the queue; ``None`` if neither names one.

    Raises:
        SubmitError: it cannot be used.
    """
    from ...kube.errors import ApiError, ConnectionLostError, NotSentError

    name, where = options.workdir_claim, options.where("workdir-claim")
    if not name:
        queue = _queue(client, options.queue or DEFAULT_QUEUE)
        if queue is None or not queue.workdir_claim:
            return None
        name, where = queue.workdir_claim, f"annotation {WORKDIR_CLAIM} of queue {queue.name}"
    if problem := dns1123_subdomain_error(name):
        raise SubmitError([f"{where}: {name!r}: {problem}"])
    try:
        return client.transport.find_claim(client.namespace, name)
    except (ApiError, ConnectionLostError, NotSentError, ValueError) as error:
        raise SubmitError([f"{where}: {error}"]) from None


def _find(options: SubmitOptions, client: "Client", connection: Mapping[str, Any]) -> Workspace:
    submit_dir = os.getcwd()
    if options.workdir_claim and (options.no_workdir or client.url != IN_PROCESS):
        other = "--no-workdir excludes it" if options.no_workdir else "it is for --kubernetes"
        raise SubmitError([f"{options.where('workdir-claim')}: {other}"])
    state = None if client.url == IN_PROCESS else _embedded_cluster(client.url, connection)
    if state is None:
        return _packed(options, client, submit_dir)
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
