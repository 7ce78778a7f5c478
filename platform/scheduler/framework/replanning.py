"""Other nodes for planned members whose nodes cannot take them any more (docs/decisions/0012).

The gang had these resources, so it is tried before all others, and what it had in its queue is
still free. It gets the missing members at least to its minimum, or none.
"""

from ..state.gangs.gang import Gang, Task
from .missing_members import MissingMembers
from .plugin_calls import PluginError
from .session import Session


def suits_node(session: Session, task: Task) -> bool:
    """Return whether filters permit the node of *task*, which is a planned member."""
    try:
        return not task.eq_class.sees_pods and bool(
            session.feasible(task.eq_class)[task.node_index]
        )
    except PluginError as error:
        session.calls.record(error)
        return False


def allocate_leaving(session: Session) -> None:
    """Allocate the members that have left their nodes; to be called before the actions."""
    for gang in session.cache.planned.leaving_gangs():
        try:
            _allocate(session, gang)
        except PluginError as error:
            session.calls.record(error)


def _allocate(session: Session, gang: Gang) -> None:
    tasks = session.tasks(gang)
    missing = MissingMembers(gang)
    with session.lend(gang), session.statement(gang) as statement:
        statement.allocate_minimum(tasks, missing)
        if not missing.satisfied:
            return
        allocated = statement.allocated_uids()
        rest = [task for task in tasks if task.uid not in allocated]
        statement.allocate_extra(rest, len(rest))
        session.commit(gang, statement)
