"""Decode and encode AdmissionReviews (``admission.k8s.io/v1``)."""

import base64
from collections.abc import Sequence

import msgspec

from ...model.admission import AdmissionRequest, Json
from ...model.base import ApiStruct
from ...model.names import Resource
from .patches import Operation

API_VERSION = "admission.k8s.io/v1"


class MalformedReviewError(Exception):
    """The body is not an AdmissionReview with a request; the text names the error."""


class GroupVersionResource(ApiStruct, frozen=True):
    """``GroupVersionResource`` of the request; *resource* is the plural name."""

    group: str = ""
    version: str = ""
    resource: str = ""


class _User(ApiStruct, frozen=True):
    username: str = ""


class WireAdmissionRequest(ApiStruct, frozen=True):
    """``AdmissionRequest`` as on the wire, with the fields that rules use."""

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
        """Return whether the request is for *resource* itself, not a subresource."""
        actual = self.resource
        return not self.sub_resource and (actual.group, actual.version, actual.resource) == (
            resource.group,
            resource.version,
            resource.plural,
        )

    def to_request(self) -> AdmissionRequest:
        """Convert to the request type of the rules."""
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
    """Return the request in *body*, decoded JSON.

    Raises:
        MalformedReviewError: *body* is not an AdmissionReview of v1 with a request.
    """
    try:
        review = msgspec.convert(body, _AdmissionReview)
    except msgspec.ValidationError as error:
        raise MalformedReviewError(f"the body is not an AdmissionReview: {error}") from error
    if review.kind != "AdmissionReview":
        raise MalformedReviewError(f"expected kind AdmissionReview, got {review.kind}")
    if review.api_version != API_VERSION:
        raise MalformedReviewError(f"expected apiVersion {API_VERSION}, got {review.api_version}")
    return review.request


def allowed(
    request: WireAdmissionRequest,
    patch: Sequence[Operation] = (),
    *,
    warnings: Sequence[str] = (),
) -> Json:
    """Return the response that allows the request with *patch* applied."""
    response: Json = {"uid": request.uid, "allowed": True}
    if warnings:
        response["warnings"] = list(warnings)
    if patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(msgspec.json.encode(patch)).decode()
    return _review_response(response)


def denied(request: WireAdmissionRequest, message: str) -> Json:
    """Return the response that denies the request.

    Without code and reason, as in Volcano, so that clients show the same message.
    """
    return _review_response({"uid": request.uid, "allowed": False, "status": {"message": message}})


def _review_response(response: Json) -> Json:
    return {"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response}
