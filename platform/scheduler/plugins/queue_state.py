"""Rejection of gangs whose queue is not open."""

from ..state.gangs.diagnosis import Stage
from ..state.gangs.gang import QueueInfo
from .extension_points import Rejection

QUEUE_NOT_FOUND, QUEUE_NOT_OPEN = "QueueNotFound", "QueueNotOpen"

_OPEN = "Open"


def queue_state_rejection(queue: QueueInfo) -> Rejection | None:
    """Return why *queue* admits no gangs, or ``None`` if it is open."""
    if queue.object is None:
        return Rejection(QUEUE_NOT_FOUND, f'queue "{queue.name}" does not exist', Stage.QUEUE)
    if queue.state != _OPEN:
        state = queue.state or "not set yet"
        message = f'queue "{queue.name}" takes no jobs: its state is {state}'
        return Rejection(QUEUE_NOT_OPEN, message, Stage.QUEUE)
    return None
