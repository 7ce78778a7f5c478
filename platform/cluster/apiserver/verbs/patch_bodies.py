"""PATCH bodies: which kind of patch it is, and how it changes an object."""

from functools import partial

from ..errors.status import StatusError, bad_request, unsupported_media
from ..http.negotiation import parse_json
from ..http.requests import Json, Request
from ..kinds.info import KindInfo
from .patches import PatchError, json_patch, merge_patch, strategic_merge
from .writes import Change

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
_APPLY_PATCHES = ("application/apply-patch+yaml", "application/apply-patch+cbor")


def read_patch(request: Request, kind: KindInfo) -> Change:
    """The change that a PATCH request asks for.

    Raises:
        StatusError: 400 or 415; the change itself raises 400, 413 or 422.
    """
    media = request.headers.get("content-type", "").partition(";")[0].strip()
    known = [JSON_PATCH, MERGE_PATCH]
    if not kind.custom:
        known.append(STRATEGIC_PATCH)
    if media not in known:
        why = ""
        if media in _APPLY_PATCHES:
            why = "the embedded cluster does not support server-side apply"
        raise unsupported_media(known, why)
    try:
        body = parse_json(request.body)
    except StatusError as error:
        raise bad_request(f"error decoding patch: {error.message}") from error
    return partial(_apply, media, kind, body)


def _apply(media: str, kind: KindInfo, body: object, current: Json) -> Json:
    try:
        if media == JSON_PATCH:
            changed = json_patch(current, body)
        elif media == MERGE_PATCH:
            changed = merge_patch(current, body)
        else:
            changed = strategic_merge(kind.resource, current, body)
    except PatchError as error:
        raise StatusError(error.status, error.reason, error.message, details={}) from error
    if not isinstance(changed, dict):
        raise bad_request("the patched document is no object")
    return changed
