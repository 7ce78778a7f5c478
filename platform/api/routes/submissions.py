"""Route of the working directories of jobs."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from ...model.workdirs import MAX_ARCHIVE
from ...wire.jobs import JobKindName, JobSummary
from ..http.query_values import QueryFlag
from ..problems import invalid_fields, problem_responses
from ..schemas.responses import respond, schema_of
from ..writes import submissions
from .dependencies import Caller, Name, Namespace, State, served_kind

router = APIRouter(prefix="/v1", tags=["jobs"])

_GZIP = b"\x1f\x8b"
_BODY: dict[str, Any] = {
    "requestBody": {
        "description": f"A tar archive, compressed by gzip, of at most {MAX_ARCHIVE} bytes.",
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}


@router.put(
    "/namespaces/{namespace}/jobs/{name}/submission",
    summary="Complete the submission of a job",
    response_model=schema_of(JobSummary),
    responses=problem_responses(404, 409, 422),
    openapi_extra=_BODY,
)
async def complete_submission(
    namespace: Namespace,
    name: Name,
    request: Request,
    state: State,
    caller: Caller,
    hold: Annotated[QueryFlag, Query(description="Let the job remain suspended.")] = False,
    uid: Annotated[str, Query(max_length=128, description="Of the job.")] = "",
) -> Response:
    """Store the working directory of a job in ConfigMaps, and let the job begin.

    The job was created suspended, with the label `batholith.io/submission: incomplete`, and its
    pods mount the ConfigMaps `NAME-workdir-0`, …, which have pieces of 512 KiB under the key
    `chunk`. The caller needs the rights to create ConfigMaps and to patch the job. An empty body
    stores nothing.
    """
    kind = served_kind(state, JobKindName.JOBS)
    archive = await request.body()
    if archive and not archive.startswith(_GZIP):
        raise invalid_fields(("body", "must be a tar archive that is compressed by gzip"))
    return respond(
        await submissions.complete(
            caller.client, kind, name, archive, namespace=namespace, uid=uid, hold=hold
        )
    )
