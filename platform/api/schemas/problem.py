"""The body of error responses."""

from pydantic import BaseModel, ConfigDict, Field


class FieldProblem(BaseModel):
    """What is wrong with one field of the body, or one parameter."""

    field: str
    message: str


class Problem(BaseModel):
    """An error (RFC 9457)."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "type": "about:blank",
                    "title": "Not Found",
                    "status": 404,
                    "detail": "job 'train' not found in namespace 'default'",
                }
            ]
        }
    )

    type: str
    title: str
    status: int
    detail: str
    errors: list[FieldProblem] = Field(default=[], description="Given for status 422.")
    allowed_phases: list[str] = Field(
        default=[], description="Given for status 409: phases in which the action is allowed."
    )
