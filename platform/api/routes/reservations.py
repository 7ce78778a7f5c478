"""Route of what is reserved on nodes for jobs that wait."""

from fastapi import APIRouter

from ...model.names import NODES
from ...wire.waits import ReservationList
from ..competition import reservations_of, visible_jobs
from ..identity.reviewer import AccessAttributes
from ..schemas.responses import WireRoute
from .dependencies import Caller, State

router = APIRouter(prefix="/v1", tags=["nodes"], route_class=WireRoute)


@router.get("/reservations", summary="What is reserved on nodes")
async def list_reservations(state: State, caller: Caller) -> ReservationList:
    """List what the scheduler has reserved on nodes, and for which jobs: planned starts, and nodes
    that are held until a job starts.

    The caller needs the right to list nodes. Only jobs are named whose kind the caller may list in
    their namespace.
    """
    access = AccessAttributes(verb="list", resource=NODES, namespace="")
    await state.reviewer.authorize(caller.user, access)
    found = await state.simulations.list_reservations()
    visible = await visible_jobs(state.reviewer, caller.user, (each.job for each in found.items))
    return reservations_of(found, visible)
