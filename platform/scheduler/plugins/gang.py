"""``gang``: all or nothing, and gangs that do not run yet before those that want more."""

from collections.abc import Mapping

from ..gangs import Gang
from .points import Refusal

NOT_ENOUGH_TASKS = "NotEnoughTasks"
NOT_ENOUGH_OF_ROLE = "NotEnoughPodsOfTask"


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
        return None

    def rank(self, gang: Gang) -> float:
        """Gangs that are not ready come first."""
        return float(gang.is_ready())
