"""The state that handles of jobs have in common, blocking and asynchronous."""

import html

from ..wire.commands import CommandResult
from ..wire.jobs import JobSummary
from .effects import Operation
from .errors import ClientError
from .operations.jobs import get_job
from .operations.scopes import Collection, ObjectRef


class JobState:
    """A job, and its state when it was last read."""

    def __init__(self, info: JobSummary) -> None:
        self.info = info
        """All fields."""

    @property
    def name(self) -> str:
        """Its name."""
        return self.info.name

    @property
    def namespace(self) -> str:
        """Its namespace."""
        return self.info.namespace

    @property
    def kind(self) -> str:
        """Its kind in paths, e.g. ``jobs`` or ``pytorchjobs``."""
        return self.info.kind

    @property
    def uid(self) -> str:
        """Its uid."""
        return self.info.uid

    @property
    def queue(self) -> str:
        """Its queue."""
        return self.info.queue

    @property
    def phase(self) -> str:
        """Its phase when it was last read."""
        return self.info.phase

    @property
    def is_finished(self) -> bool:
        """Whether the phase is final."""
        return self.info.is_finished

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.kind} {self.info}>"

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(repr(self))}</p>{self.info._repr_html_()}"


def ref_of(info: JobSummary, collection: Collection) -> ObjectRef:
    """Return the object of a state; its kind may differ from that of *collection*."""
    return ObjectRef(
        collection=Collection(collection.server, info.kind),
        namespace=info.namespace,
        name=info.name,
        uid=info.uid,
    )


def then_read(
    job: ObjectRef, command: Operation[CommandResult]
) -> Operation[tuple[CommandResult, JobSummary | None]]:
    """Send a command, and read the job if the outcome was waited for.

    The state is ``None`` if it was not read: the command was executed all the same.
    """
    result = yield from command
    if result.reached is None:
        return result, None
    try:
        info = yield from get_job(job)
    except ClientError:
        return result, None
    return result, info if info.uid == job.uid else None
