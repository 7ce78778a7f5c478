"""AdmissionReviews: what webhooks are sent, and the checks of what they respond."""

import base64
import binascii
from http import HTTPStatus

import msgspec

from ....model.names import Resource
from ..errors.status import StatusError
from ..http.requests import Json
from ..kinds.info import KindInfo
from .attributes import AdmissionAttributes

REVIEW_VERSIONS = ("v1", "v1beta1")
"""Versions of AdmissionReview that the server sends, as kube-apiserver."""


class InvalidResponseError(Exception):
    """A webhook has sent a response that does not belong to its review."""


class ReviewResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a webhook has decided."""

    allowed: bool
    result: Json | None
    patch: list[Json]
    """Operations of a JSON patch."""

    warnings: list[str]


def review_request(
    attributes: AdmissionAttributes, kind: KindInfo, obj: Json | None, old: Json | None
) -> Json:
    """Return the request of a review without its uid; *kind* is the one that *obj* is in."""
    requested = attributes.kind.resource
    subresource = attributes.object_path.subresource
    request: Json = {
        "kind": _kind(kind.resource),
        "resource": _resource(kind.resource),
        "requestKind": _kind(requested),
        "requestResource": _resource(requested),
        "operation": attributes.operation,
        "userInfo": attributes.user.to_user_info(),
        "object": obj,
        "oldObject": old,
        "dryRun": attributes.dry_run,
        "options": attributes.options,
    }
    if attributes.operation == "CONNECT":
        connected = attributes.kind.subresources[subresource]
        options = {"group": "", "version": connected.version, "kind": connected.kind}
        request["kind"] = request["requestKind"] = options
    if subresource:
        request["subResource"] = request["requestSubResource"] = subresource
    if attributes.name and not attributes.is_name_generated:
        request["name"] = attributes.name
    if attributes.review_namespace:
        request["namespace"] = attributes.review_namespace
    return request


def _kind(resource: Resource) -> Json:
    return {"group": resource.group, "version": resource.version, "kind": resource.kind}


def _resource(resource: Resource) -> Json:
    return {"group": resource.group, "version": resource.version, "resource": resource.plural}


def review(version: str, uid: str, request: Json) -> bytes:
    """Return the body that is sent to a webhook."""
    return msgspec.json.encode(
        {
            "kind": "AdmissionReview",
            "apiVersion": f"admission.k8s.io/{version}",
            "request": {"uid": uid, **request},
        }
    )


class _Response(msgspec.Struct, rename="camel"):
    uid: str = ""
    allowed: bool = False
    status: Json | None = None
    patch: str | None = None
    patch_type: str | None = None
    warnings: list[str] | None = None


class _Review(msgspec.Struct, rename="camel"):
    kind: str = ""
    api_version: str = ""
    response: _Response | None = None


def check_response(body: bytes, *, version: str, uid: str) -> Json:
    """Return the response in *body*, which belongs to the review with *uid*.

    Raises:
        InvalidResponseError: it does not.
    """
    try:
        found = msgspec.json.decode(body, type=_Review)
    except msgspec.DecodeError as error:
        raise InvalidResponseError(str(error)) from error
    if found.response is None:
        raise InvalidResponseError("webhook response was absent")
    if version == "v1":
        if found.response.uid != uid:
            text = f'expected response.uid="{uid}", got "{found.response.uid}"'
            raise InvalidResponseError(text)
        expected, sent = (
            ("admission.k8s.io/v1", "AdmissionReview"),
            (
                found.api_version,
                found.kind,
            ),
        )
        if sent != expected:
            shown = [f"{group}, Kind={kind}" for group, kind in (expected, sent)]
            raise InvalidResponseError(f"expected webhook response of {shown[0]}, got {shown[1]}")
    response: Json = msgspec.to_builtins(found.response)
    return response


def read_response(response: Json, *, mutating: bool, strict: bool) -> ReviewResult:
    """Return the decision in a checked response; *strict*: it is a review in v1.

    Raises:
        InvalidResponseError: it has a patch that it may not have.
        PatchDecodeError: its patch cannot be decoded.
    """
    patch, patch_type = response.get("patch") or "", response.get("patchType")
    if strict and not mutating and (patch or patch_type is not None):
        field = "patch" if patch else "patchType"
        raise InvalidResponseError(f"validating webhook may not return response.{field}")
    if strict and mutating and bool(patch) != (patch_type is not None):
        has, lacks = ("patch", "patchType") if patch else ("patchType", "patch")
        text = f"webhook returned response.{has} but not response.{lacks}"
        raise InvalidResponseError(text)
    if strict and patch_type is not None and patch_type != "JSONPatch":
        raise InvalidResponseError(f'unsupported patch type "{patch_type}"')
    return ReviewResult(
        allowed=bool(response.get("allowed")),
        result=response.get("status"),
        patch=_decode_patch(patch) if patch and mutating else [],
        warnings=response.get("warnings") or [],
    )


class PatchDecodeError(Exception):
    """The patch in a response is no list of operations."""


def _decode_patch(encoded: str) -> list[Json]:
    try:
        return msgspec.json.decode(base64.b64decode(encoded, validate=True), type=list[Json])
    except (binascii.Error, ValueError, msgspec.DecodeError) as error:
        raise PatchDecodeError(str(error)) from error


def rejection(name: str, result: Json | None) -> StatusError:
    """Return the error of a write that webhook *name* denies with *result*."""
    result = result or {}
    by = f'admission webhook "{name}" denied the request'
    reason, why = str(result.get("reason") or ""), result.get("message") or result.get("reason")
    code = result.get("code")
    if not isinstance(code, int) or code < HTTPStatus.BAD_REQUEST:
        code = int(HTTPStatus.BAD_REQUEST)
    details = result.get("details")
    return StatusError(
        code,
        reason,
        f"{by}: {why}" if why else f"{by} without explanation",
        details=details if isinstance(details, dict) else None,
    )
