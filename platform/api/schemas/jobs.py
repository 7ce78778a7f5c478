"""Bodies of requests for jobs, and the schemas of lists with some fields of jobs."""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, create_model
from pydantic.fields import FieldInfo

from ...model.quantity import parse
from ...model.quantity_advice import quantity_advice
from ...model.validation import DNS1123_SUBDOMAIN
from ...wire.jobs import JobSummary
from .responses import schema_of
from .strict import StrictBody

MAX_INT = 2**31 - 1
Count = Annotated[int, Field(ge=0, le=MAX_INT, strict=True)]


def _check_quantity(value: object) -> str:
    """Return the text of a quantity, which may be a number."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError("must be a quantity, such as '500m', '2Gi' or 1.5")
    text = str(value)
    if advice := quantity_advice(text):
        raise ValueError(advice)
    if parse(text).nanos < 0:
        raise ValueError("must not be negative")
    return text


Quantity = Annotated[
    str,
    BeforeValidator(_check_quantity),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "number", "minimum": 0}]}),
]


def _optional(field: FieldInfo) -> Any:
    """Return *field* without its being required."""
    return Field(
        default=None,
        description=field.description,
        json_schema_extra=lambda schema: schema.pop("default", None),
    )


IDENTITY = ("namespace", "name", "uid")
"""Fields that every item of a list has."""

_JOB = schema_of(JobSummary)
PartialJob: type[BaseModel] = create_model(
    "PartialJob",
    __doc__="The fields of a job that `fields` names; namespace, name and uid are always there.",
    **{
        name: (field.annotation, field if name in IDENTITY else _optional(field))
        for name, field in _JOB.model_fields.items()
    },
)  # type: ignore[call-overload]


class JobList(BaseModel):
    """One page of jobs."""

    items: list[_JOB | PartialJob]  # type: ignore[valid-type]
    next_cursor: str | None = Field(description="Cursor of the next page; null on the last one.")
    total: int = Field(description="Number of jobs that match, on all pages.")


class JobManifest(BaseModel):
    """A job as for `kubectl create`; `apiVersion` and `kind` must be those of the path."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={
            "examples": [
                {
                    "apiVersion": "batch.volcano.sh/v1alpha1",
                    "kind": "Job",
                    "metadata": {"generateName": "train-"},
                    "spec": {
                        "minAvailable": 2,
                        "schedulerName": "volcano",
                        "tasks": [
                            {
                                "name": "worker",
                                "replicas": 2,
                                "template": {
                                    "spec": {
                                        "restartPolicy": "Never",
                                        "containers": [
                                            {
                                                "name": "main",
                                                "image": "busybox",
                                                "command": ["sleep", "60"],
                                            }
                                        ],
                                    }
                                },
                            }
                        ],
                    },
                }
            ]
        },
    )

    apiVersion: str = Field(max_length=253)  # noqa: N815 - as in manifests
    kind: str = Field(max_length=63)
    metadata: dict[str, Any] = Field(
        default={},
        description="Without `name` the job is named by this API: `generateName`, then a part of "
        "the operation's id.",
    )
    spec: dict[str, Any]


class ShortJob(StrictBody):
    """A Volcano job of one task, in short."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "name": "train",
                    "image": "busybox",
                    "command": ["sleep", "60"],
                    "replicas": 2,
                    "cpu": "500m",
                    "memory": "64Mi",
                }
            ]
        },
    )

    name: Annotated[str, Field(max_length=63, pattern=f"^{DNS1123_SUBDOMAIN}$")] | None = Field(
        default=None, description="Chosen by this API if it is missing: `job-` and an id."
    )
    queue: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    image: str = Field(min_length=1, max_length=4096)
    command: Annotated[list[str], Field(min_length=1, max_length=1000)] | None = Field(
        default=None, description="Replaces the image's entry point."
    )
    replicas: Annotated[int, Field(ge=1, le=MAX_INT, strict=True)] = 1
    min_available: Annotated[int, Field(ge=1, le=MAX_INT, strict=True)] | None = Field(
        default=None, description="Pods that start together or not at all; all by default."
    )
    cpu: Quantity | None = Field(default=None, description="Request of each pod, e.g. `500m`.")
    memory: Quantity | None = Field(
        default=None, description="Request and limit of each pod, e.g. `2Gi`."
    )
    gpus: Count | None = Field(
        default=None, description="Request and limit of each pod of `nvidia.com/gpu`."
    )
    env: Annotated[dict[str, str], Field(max_length=1000)] = {}
    labels: Annotated[dict[str, str], Field(max_length=1000)] = Field(
        default={}, description="Labels of the job."
    )
    max_retry: Annotated[int, Field(ge=1, le=MAX_INT, strict=True)] | None = Field(
        default=None,
        description="How often the job is restarted when a pod fails; without it, a failed pod is "
        "not replaced.",
    )
    ttl_seconds_after_finished: Count | None = Field(
        default=None, description="Time until the finished job is deleted."
    )


class ScaleIn(StrictBody):
    """New numbers of pods; what is not named stays."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"tasks": {"worker": 5}}]})

    tasks: Annotated[dict[str, Count], Field(max_length=1000)] | None = Field(
        default=None,
        description="Replicas of tasks, or of the replica types of a training job. A task's own "
        "`minAvailable` is lowered to them if it is greater.",
    )
    min_available: Count | None = Field(
        default=None, description="Pods of the gang, of Volcano and training jobs."
    )
    parallelism: Count | None = Field(default=None, description="Pods of a Job of batch/v1.")


def _example(model: type[BaseModel]) -> Any:
    return model.model_json_schema()["examples"][0]


JOB_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "anyOf": [JobManifest.model_json_schema(), ShortJob.model_json_schema()]
                },
                "examples": {
                    "short": {"value": _example(ShortJob)},
                    "manifest": {"value": _example(JobManifest)},
                },
            }
        },
    }
}
"""The description of a body that is a manifest or the short form of a job."""
