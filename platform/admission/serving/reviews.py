"""AdmissionReviews (``admission.k8s.io/v1``): what an API server asks, and the answers to it."""

import base64
from collections.abc import Sequence

import msgspec

from ...model.admission import AdmissionRequest, Json
from ...model.base import ApiStruct
from ...model.names import Resource
from .patches import Operation

API_VERSION = "admission.k8s.io/v1"


class MalformedReviewError(Exception):
    """What came is no AdmissionReview with a request; the text says what is missing."""


class GroupVersionResource(ApiStruct, frozen=True):
    """Names a collection; *resource* is the plural."""

    group: str = ""
    version: str = ""
    resource: str = ""


class _User(ApiStruct, frozen=True):
    username: str = ""


class WireAdmissionRequest(ApiStruct, frozen=True):
    """One write under review, as far as our rules look at it."""

    uid: str
    resource: GroupVersionResource
    operation: str
    sub_resource: str = ""
    namespace: str = ""
    name: str = ""
    user_info: _User = _User()
    object: Json | None = None
    old_object: Json | None = None

    def matches_resource(self, resource: Resource) -> bool:
        """Whether it is about an object of *resource*, not about a part such as its status."""
        asked = self.resource
        return not self.sub_resource and (asked.group, asked.version, asked.resource) == (
            resource.group,
            resource.version,
            resource.plural,
        )

    def to_request(self) -> AdmissionRequest:
        """The same in the words of the rules."""
        subject = self.object or self.old_object or {}
        metadata = subject.get("metadata")
        name = metadata.get("name", "") if isinstance(metadata, dict) else ""
        return AdmissionRequest(
            operation=self.operation,
            namespace=self.namespace,
            name=self.name or name,
            object=None if self.operation == "DELETE" else self.object,
            old_object=self.old_object,
            user=self.user_info.username,
        )


class _AdmissionReview(ApiStruct, frozen=True):
    api_version: str
    kind: str
    request: WireAdmissionRequest


def decode(body: object) -> WireAdmissionRequest:
    """The request in *given*, which was decoded from JSON.

    Raises:
        MalformedReviewError: it is no AdmissionReview of v1, or asks nothing.
    """
    try:
        review = msgspec.convert(body, _AdmissionReview)
    except msgspec.ValidationError as error:
        raise MalformedReviewError(f"the body is no AdmissionReview: {error}") from error
    if review.kind != "AdmissionReview":
        raise MalformedReviewError(f"a {review.kind} came in the place of an AdmissionReview")
    if review.api_version != API_VERSION:
        raise MalformedReviewError(
            f"an AdmissionReview is to be of {API_VERSION}, not {review.api_version}"
        )
    return review.request


def allowed(request: WireAdmissionRequest, patch: Sequence[Operation] = ()) -> Json:
    """The answer that lets a write pass, with *patch* applied."""
    response: Json = {"uid": request.uid, "allowed": True}
    if patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(msgspec.json.encode(patch)).decode()
    return _review_response(response)


def denied(request: WireAdmissionRequest, message: str) -> Json:
    """The answer that refuses a write.

    It has neither code nor reason: then clients read the message just as Volcano's.
    """
    return _review_response({"uid": request.uid, "allowed": False, "status": {"message": message}})


def _review_response(response: Json) -> Json:
    return {"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response}
