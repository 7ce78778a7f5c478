"""An authorizer for tests that need no roles."""

from batholith.local.apiserver.authorization.authorizer import Authorizer
from batholith.local.apiserver.authorization.bootstrap_policy import RESOURCES
from batholith.local.apiserver.authorization.node_authorizer import NodeAuthorizer
from batholith.local.apiserver.authorization.node_graph import NodeGraph
from batholith.local.apiserver.builtin.kinds import BUILT_IN
from batholith.local.apiserver.storage.resource_store import ResourceStore


def authorizer_without_roles() -> Authorizer:
    """Only members of system:masters are allowed anything."""
    kinds = {kind.resource.plural: kind for kind in BUILT_IN if kind.resource in RESOURCES}
    stores = {plural: ResourceStore(kind, oldest_version=0) for plural, kind in kinds.items()}
    return Authorizer(
        roles=stores["roles"],
        role_bindings=stores["rolebindings"],
        cluster_roles=stores["clusterroles"],
        cluster_role_bindings=stores["clusterrolebindings"],
        nodes=NodeAuthorizer(NodeGraph({})),
    )
