"""Sockets on which an embedded cluster listens, opened before its components start."""

import errno
import os
import socket
from contextlib import suppress
from pathlib import Path

from ..local.network.resolvers import addresses_of_cluster
from ..model.service_network import API_SERVER_IPS
from .flag_groups import LOOPBACK

MAX_UNIX_PATH = 107
"""Maximum bytes of a Unix socket's path on Linux."""


def listen_locally(path: Path) -> socket.socket | None:
    """Listen on a Unix socket at *path*, in a private directory; ``None`` if it is too long.

    The components then use TLS.
    """
    if len(os.fsencode(path)) > MAX_UNIX_PATH:
        return None
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(os.fspath(path))
        path.chmod(0o600)
        listener.listen(1024)
    except OSError:
        listener.close()
        raise
    return listener


def listen_preferring(port: int) -> socket.socket:
    """Listen on *port* if that is possible, else on any free port."""
    with suppress(OSError):
        return listen(port)
    return listen(0)


def listen_as_service(data_dir: Path) -> socket.socket | None:
    """Listen on port 443 of an address for the Service ``kubernetes``.

    ``None`` if the port needs privileges, or the system has one loopback address only. Another
    cluster of the machine may listen on an address.
    """
    for address in addresses_of_cluster(API_SERVER_IPS, data_dir):
        try:
            return listen(443, host=address)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                break
    return None


def listen(port: int, *, host: str = LOOPBACK) -> socket.socket:
    """Listen on *port* of the loopback address, or of another one; 0 is any free one.

    Raises:
        OSError: the port is in use, or needs privileges.
    """
    listener = socket.socket()
    try:
        # Allow a port with connections in TIME_WAIT.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(1024)
    except OSError:
        listener.close()
        raise
    return listener
