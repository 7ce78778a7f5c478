"""``gang``: all or nothing, and gangs that do not run yet before those that want more."""

from collections.abc import Mapping

from ..state.gangs import Gang, Task
from .extension_points import Refusal

NOT_ENOUGH_TASKS = "NotEnoughTasks"
NOT_ENOUGH_OF_ROLE = "NotEnoughPodsOfTask"
GATED = "SchedulingGated"


class GangPlugin:
    """Knows when a gang has enough members to be worth a try."""

    def __init__(self, arguments: Mapping[str, object]) -> None:
        """Take no arguments."""

    def flaw(self, gang: Gang) -> Refusal | None:
        """Refuse a gang whose members have not all been made."""
        for role, minimum in sorted(gang.role_minima.items()):
            there = gang.role_tally(role).valid
            if there < minimum:
                message = f"{there} of the {minimum} pods that task {role} needs exist"
                return Refusal(NOT_ENOUGH_OF_ROLE, message)
        there = gang.tally.valid
        if there < gang.min_member:
            message = f"{there} of the {gang.min_member} pods that the group needs exist"
            return Refusal(NOT_ENOUGH_TASKS, message)
        return _held_back(gang)

    def rank(self, gang: Gang) -> float:
        """Gangs that are not ready come first."""
        return float(gang.is_ready())


def _held_back(gang: Gang) -> Refusal | None:
    """Refuse a gang that lacks what others hold back by scheduling gates."""
    if not gang.held:
        return None
    for role, minimum in sorted(gang.role_minima.items()):
        held = [task for task in gang.held.values() if task.role == role]
        if held and gang.role_tally(role).valid - len(held) < minimum:
            return _gated(held)
    held = list(gang.held.values())
    return _gated(held) if gang.tally.valid - len(held) < gang.min_member else None


def _gated(held: list[Task]) -> Refusal:
    gates = sorted({gate for task in held for gate in task.gates})
    first = min(held, key=Task.age)
    others = f" and {len(held) - 1} more" if len(held) > 1 else ""
    kind = "gate" if len(gates) == 1 else "gates"
    message = f"{first.name}{others}: held back by the scheduling {kind} {', '.join(gates)}"
    return Refusal(GATED, message)
