"""Nodes whose certificates are revoked: a ConfigMap that is looked up at each request of a node."""

from collections.abc import Callable

from ....model import names
from ....model.node_identity import REVOKED_NAMESPACE, REVOKED_NODES, USER_PREFIX
from .tokens import Lookup


def revoked_nodes(lookup: Lookup) -> Callable[[str], bool]:
    """Return a function that takes the name of a user, as certificates have it."""

    def is_revoked(user: str) -> bool:
        if not user.startswith(USER_PREFIX):
            return False
        found = lookup(names.CONFIGMAPS, REVOKED_NAMESPACE, REVOKED_NODES)
        data = found.shared().get("data") if found is not None else None
        return user.removeprefix(USER_PREFIX) in (data or {})

    return is_revoked
