"""What a machine that has joined the cluster of another one remembers of it."""

import msgspec

from ...kube.private_files import read_private
from .datadir import DataDir


class JoinError(Exception):
    """The machine cannot join; the text has the reason."""


class Membership(msgspec.Struct, frozen=True, kw_only=True):
    """What a machine that has joined keeps in ``node.json``."""

    node: str
    server: str
    """``https://address:port`` of the API server."""


def read(data: DataDir) -> Membership | None:
    """Return to which cluster a data directory belongs; ``None`` if it has not joined one.

    Raises:
        JoinError: the file is malformed.
        UnsafePathError: other users control it.
    """
    try:
        return msgspec.json.decode(read_private(data.node_json), type=Membership)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError:
        raise JoinError(f"{data.node_json} is malformed") from None
