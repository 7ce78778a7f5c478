"""Scores of nodes by the alternatives that claims of devices would get there, as kube-scheduler's
DynamicResources has them: the earlier in ``firstAvailable``, the better."""

import numpy as np

from ..state.devices.requests import decode
from ..state.nodes.node_matrix import NodeMatrix
from ..state.podinfo.device_requirements import PendingClaim
from ..state.resources import IntVector

_HIGHEST = 100


def have_alternatives(claims: tuple[PendingClaim, ...]) -> bool:
    """Return whether a request of *claims* has alternatives."""
    return any(
        choice.is_alternative for claim in claims for choice in decode(claim.devices).choices()
    )


def device_scores(
    claims: tuple[PendingClaim, ...], nodes: NodeMatrix, candidates: IntVector
) -> IntVector | None:
    """Score *candidates* for one more pod with *claims*; ``None`` if all are equal."""
    decisions = (nodes.available_devices.decide(claims, each) for each in candidates.tolist())
    found = np.array(
        [sum(each.preference for each in decision or ()) for decision in decisions], np.int64
    )
    return None if found.min() == found.max() else found * _HIGHEST // found.max()
