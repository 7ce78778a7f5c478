"""Routes of logs: of one pod, and of all pods of a job."""

from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import PlainTextResponse

from ...kube.client.client import Client
from ...kube.errors import BadRequestError
from ..http.query_values import WHOLE_NUMBER, QueryFlag
from ..http.text_stream import TextOutput, TextStream
from ..jobs.pods import JobPods, read_job
from ..logs.containers import LogOptions, open_log
from ..logs.merged import MergedLogs, MergeOptions
from ..problems import ProblemError, invalid_fields, problem_responses
from .dependencies import Caller, Kind, Name, Namespace, State

MAX_NUMBER = 2**31 - 1

Container = Annotated[str, Query(max_length=63, pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
Follow = Annotated[QueryFlag, Query(description="Whether lines are sent as they are written.")]
TailLines = Annotated[
    int | None, Query(ge=0, le=MAX_NUMBER, description="Only the last lines."), WHOLE_NUMBER
]
SinceSeconds = Annotated[
    int | None,
    Query(ge=1, le=MAX_NUMBER, description="Only lines that are not older."),
    WHOLE_NUMBER,
]
Prefix = Annotated[QueryFlag, Query(description="Whether each line begins with `[pod] `.")]
Timestamps = Annotated[QueryFlag, Query(description="Whether each line begins with its time.")]

_TEXT: dict[int | str, dict[str, Any]] = {
    200: {"description": "The log.", "content": {"text/plain": {"schema": {"type": "string"}}}}
}

router = APIRouter(prefix="/v1", tags=["pods"])


@router.get(
    "/namespaces/{namespace}/{kind:job_kind}/{name}/pods/{pod}/log",
    summary="The log of a pod",
    response_class=PlainTextResponse,
    responses=_TEXT | problem_responses(404, 409),
)
async def get_pod_log(  # Parameters of a route are the request's inputs.
    namespace: Namespace,
    kind: Kind,
    name: Name,
    pod: Name,
    state: State,
    caller: Caller,
    container: Annotated[
        Container | None,
        Query(description="Init containers, too. May be omitted if the pod has one container."),
    ] = None,
    follow: Follow = False,
    tail_lines: TailLines = None,
    since_seconds: SinceSeconds = None,
    timestamps: Timestamps = False,
    previous: Annotated[
        QueryFlag, Query(description="Whether the log is that of the run before the last restart.")
    ] = False,
    limit_bytes: Annotated[
        int | None, Query(ge=1, le=MAX_NUMBER, description="Only the first bytes."), WHOLE_NUMBER
    ] = None,
) -> TextStream:
    """Return the log of a container, with the rights of the caller, as the API server sends it.

    409 if the container has no such log. With `follow` the log ends when the container does. A
    transfer that breaks is incomplete.
    """
    options = LogOptions(
        container=container or "",
        follow=follow,
        tail_lines=tail_lines,
        since_seconds=since_seconds,
        timestamps=timestamps,
        previous=previous,
        limit_bytes=limit_bytes,
    )
    job = await read_job(caller.client, kind, namespace, name)
    found = await JobPods(caller.client, kind, job).get(pod)
    if container and not found.log_containers(container):
        raise invalid_fields(("container", f"pod {pod!r} has no container {container!r}"))
    choices = found.log_containers("")
    if not container and len(choices) > 1:
        raise invalid_fields(("container", f"name one of: {', '.join(choices)}"))
    user = caller.user.username
    state.log_streams.check(user)

    async def write(output: TextOutput) -> None:
        async with state.log_streams.one(user):
            await _copy(caller.client, namespace, pod, options, output)

    return TextStream(write)


async def _copy(
    client: Client, namespace: str, pod: str, options: LogOptions, output: TextOutput
) -> None:
    try:
        async with open_log(client, namespace, pod, options) as chunks:
            await output.start()
            async for chunk in chunks:
                await output.write(chunk)
    except BadRequestError as error:
        raise ProblemError(409, error.message) from None


@router.get(
    "/namespaces/{namespace}/{kind:job_kind}/{name}/logs",
    summary="The logs of all pods of a job",
    response_class=PlainTextResponse,
    responses=_TEXT | problem_responses(404),
)
async def get_job_logs(  # Parameters of a route are the request's inputs.
    namespace: Namespace,
    kind: Kind,
    name: Name,
    state: State,
    caller: Caller,
    task: Annotated[str, Query(max_length=253, description="Only pods of this task.")] = "",
    container: Annotated[
        Container | None,
        Query(description="Only this container, which may be an init container."),
    ] = None,
    follow: Follow = False,
    tail_lines: TailLines = None,
    since_seconds: SinceSeconds = None,
    timestamps: Timestamps = False,
    prefix: Annotated[
        QueryFlag, Query(description="Whether each line begins with `[pod] `.")
    ] = False,
) -> TextStream:
    """Return the lines of all pods, merged; the limits apply to each container.

    With `follow` pods that are created later join, and the text ends when the job has finished and
    all its pods were read; at most 64 containers are followed at a time (422). Lines that begin
    with `[batholith]` report logs that are lost. A transfer that breaks is incomplete.
    """
    job = await read_job(caller.client, kind, namespace, name)
    options = MergeOptions(
        task=task,
        container=container or "",
        follow=follow,
        tail_lines=tail_lines,
        since_seconds=since_seconds,
        timestamps=timestamps,
        prefix=prefix,
    )
    merged = MergedLogs(
        JobPods(caller.client, kind, job),
        options,
        streams=state.log_streams,
        user=caller.user.username,
    )
    await merged.prepare()
    return TextStream(merged.run)
