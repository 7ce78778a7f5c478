"""Bodies that have no unknown fields."""

from typing import Any, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    ModelWrapValidatorHandler,
    ValidationError,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from ...model.spelling import hint


class StrictBody(BaseModel):
    """A body in which an unknown field is an error that names the nearest known one."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="wrap")
    @classmethod
    def _explain_unknown(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return handler(value)
        except ValidationError as error:
            details = [
                InitErrorDetails(
                    type=PydanticCustomError(each["type"], cls._message(each)),
                    loc=each["loc"],
                    input=each["input"],
                )
                for each in error.errors(include_url=False, include_context=False)
            ]
            raise ValidationError.from_exception_data(error.title, details) from None

    @classmethod
    def _message(cls, error: Any) -> str:
        if error["type"] != "extra_forbidden":
            return str(error["msg"])
        return f"unknown field; {hint(str(error['loc'][-1]), cls.model_fields)}"
