"""The body of error responses."""

from pydantic import BaseModel, Field


class Problem(BaseModel):
    """An error (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    errors: list[dict[str, str]] | None = None
    allowed_phases: list[str] | None = Field(
        default=None, description="Phases in which the command is allowed (409)."
    )
