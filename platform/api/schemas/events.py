"""Bodies of the route of events."""

from pydantic import BaseModel, Field

from ...model.meta import ObjectReference


class EventObject(BaseModel):
    """The object that an event regards."""

    kind: str
    name: str

    @classmethod
    def of(cls, reference: ObjectReference) -> "EventObject":
        """Convert a reference."""
        return cls(kind=reference.kind, name=reference.name)


class EventOut(BaseModel):
    """An event of a job, of its PodGroup or of one of its pods."""

    type: str = Field(description="`Normal` or `Warning`.")
    reason: str
    message: str
    count: int
    first_at: str
    last_at: str
    object: EventObject
    source: str = Field(description="Component that recorded the event.")


class EventList(BaseModel):
    """Events of a job, the newest last."""

    items: list[EventOut]
    total: int = Field(description="Number of events; the oldest are omitted beyond `limit`.")
