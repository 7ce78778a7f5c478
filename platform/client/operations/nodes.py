"""What is reserved on nodes."""

from ...wire.waits import ReservationList
from ..calls import call
from ..effects import Operation
from ..requests import get, path
from .scopes import Server


def reservations(server: Server) -> Operation[ReservationList]:
    """Read what the scheduler has reserved on nodes for jobs that wait.

    Raises:
        ForbiddenError: the caller may not list nodes.
        UnavailableError: no scheduler responds.
    """
    return (yield from call(server.session, get(path("reservations")), ReservationList))
