"""Route of the simulation of a job."""

from typing import Annotated

import msgspec
from fastapi import APIRouter, Query, Request

from ...model.job import Job
from ...model.validation import DNS1123_LABEL
from ...wire.jobs import JobKindName
from ...wire.simulation import Simulation
from ..problems import invalid_fields, problem_responses
from ..schemas.jobs import JOB_BODY
from ..schemas.responses import WireRoute
from ..simulation import simulation_of
from ..writes.manifests import build_job, decode_body
from .dependencies import Caller, OperationId, State, served_kind

router = APIRouter(prefix="/v1", tags=["jobs"], route_class=WireRoute)


@router.post(
    "/simulate",
    summary="What would become of a job",
    responses=problem_responses(404, 409),
    openapi_extra=JOB_BODY,
)
async def simulate_job(
    request: Request,
    state: State,
    caller: Caller,
    operation: OperationId,
    namespace: Annotated[str | None, Query(max_length=63, pattern=f"^{DNS1123_LABEL}$")] = None,
) -> Simulation:
    """Return whether a Volcano job would start now, and where; if not, why, and what would
    change that. Nothing is created.

    The body is a manifest, or the short form of a job. The caller needs the right to create the
    job, which the API server checks, with all its rules, in a dry run. Without a namespace, that of
    the manifest counts, or else `default`.
    """
    kind = served_kind(state, JobKindName.JOBS)
    body = decode_body(await request.body())
    if isinstance(body, dict) and body.get("kind") not in (None, kind.resource.kind):
        raise invalid_fields(("kind", f"only a {kind.resource.kind} of Volcano can be simulated"))
    namespace = namespace or _namespace_of(body) or "default"
    user = caller.user.username
    built = build_job(body, kind, namespace=namespace, operation=operation, user=user)
    created, _ = await caller.client.create_strictly(
        kind.resource, built, namespace=namespace, dry_run=True, view=msgspec.Raw
    )
    result = await state.simulations.simulate(bytes(created))
    job = msgspec.json.decode(created, type=Job)
    return simulation_of(result, job, state.clock.now())


def _namespace_of(body: object) -> str | None:
    metadata = body.get("metadata") if isinstance(body, dict) else None
    namespace = metadata.get("namespace") if isinstance(metadata, dict) else None
    return namespace if isinstance(namespace, str) else None
