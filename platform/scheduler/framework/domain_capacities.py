"""Which domains of the network could fit a gang, if other pods were not there."""

from collections.abc import Sequence

import numpy as np

from ..state.gangs.gang import Gang, SubGroup
from ..state.podinfo.equivalence import EquivalenceClass
from ..state.resources import IntVector
from .gang_domains import EVERYWHERE, Needs, Option
from .missing_members import MissingMembers, required_tasks
from .session import Session
from .victim_plan import pods_fitting


def eviction_domains(session: Session, gang: Gang) -> Sequence[Option]:
    """Return the domains in which pods may be evicted for *gang*: those that could fit it.
    Without a hard constraint, all nodes.

    Raises:
        PluginError: a filter or limit raised.
    """
    return _possible(session, gang, session.max_eviction_domains)


def eviction_domains_of(
    session: Session, gang: Gang, sub_group: SubGroup, needs: Needs
) -> Sequence[Option]:
    """Return the domains in which pods may be evicted for *needs* of *sub_group* of *gang*, within
    those that may be used now.

    Raises:
        PluginError: a filter or limit raised.
    """
    domains = session.domains_of(gang, sub_group)
    if domains is None:
        return (EVERYWHERE,)
    return domains.possible(
        needs,
        lambda each: _empty_capacities(session, each),
        session.capacities,
        session.max_eviction_domains,
    )


def planned_domain(session: Session, gang: Gang) -> Option | None:
    """Return the domain in which the start of *gang* is planned: the same one as before, if it is
    still possible. Without a hard constraint, all nodes; ``None`` if there is none.

    Raises:
        PluginError: a filter or limit raised.
    """
    options = _possible(session, gang, None)
    if not options:
        return None
    known = (each for each in options if each.name == gang.planned_domain)
    option = next(known, options[0])
    gang.planned_domain = option.name
    return option


def empty_capacity(session: Session, gang: Gang, eq_class: EquivalenceClass) -> int:
    """Return how many pods of *eq_class* would fit for *gang* if nothing else ran.

    Raises:
        PluginError: a filter raised.
    """
    capacities = _empty_capacities(session, eq_class)
    domains = session.domains_of(gang)
    if domains is None or not domains.is_hard:
        return int(capacities.sum())
    return domains.largest(capacities)


def _possible(session: Session, gang: Gang, at_most: int | None) -> Sequence[Option]:
    domains = session.domains_of(gang)
    if domains is None:
        return (EVERYWHERE,)
    tasks = list(gang.pending_tasks.values())
    needs: Needs = list(required_tasks(tasks, MissingMembers(gang)))
    return domains.possible(
        needs, lambda each: _empty_capacities(session, each), session.capacities, at_most
    )


def _empty_capacities(session: Session, eq_class: EquivalenceClass) -> IntVector:
    node_matrix = session.cache.node_matrix
    request = eq_class.request_vector(node_matrix.resource_index)
    fitting = pods_fitting(request, node_matrix.allocatable[: len(request)])
    capacities: IntVector = np.where(session.feasible(eq_class), fitting, 0)
    return capacities
