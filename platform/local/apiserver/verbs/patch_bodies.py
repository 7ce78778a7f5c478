"""PATCH bodies: media type and decoding."""

from functools import partial

from ..errors.status import StatusError, bad_request, unsupported_media
from ..http.bodies import (
    check_depth_and_size,
    duplicate_fields,
    may_repeat_fields,
    media_type,
    parse_json,
)
from ..http.requests import Json, Request
from ..kinds.info import KindInfo
from ..kinds.patches import MAX_COPIED, PatchError, json_patch, merge_patch, strategic_merge
from ..media_types import APPLY_PATCH, JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH
from .writes import UpdateFunc

_OPERATION_FIELDS = ("op", "from", "path", "value")


def check_content_type(request: Request, kind: KindInfo) -> str:
    """Return the media type of a patch.

    Raises:
        StatusError: 415, the kind does not support it.
    """
    media = media_type(request)
    known = [JSON_PATCH, MERGE_PATCH]
    if not kind.custom:
        known.append(STRATEGIC_PATCH)
    known.append(APPLY_PATCH)
    if media not in known:
        raise unsupported_media(known)
    return media


def mentions_managed_fields(request: Request) -> bool:
    """Whether a patch may read or write ``managedFields``."""
    body = request.body
    # A letter can be hidden by an escape only.
    return b"managedFields" in body or b"\\u" in body


def patch_size(request: Request) -> int:
    """Return the bytes that a patch may produce; the maximum if a JSON patch has copies."""
    body = request.body
    # A letter can be hidden by an escape only.
    if media_type(request) == JSON_PATCH and (b"copy" in body or b"\\u" in body):
        return MAX_COPIED
    return len(body)


def patch_problems(request: Request) -> tuple[str, ...]:
    """Return texts about duplicate fields of a patch, and unknown ones of JSON operations.

    Raises:
        StatusError: 400 or 413.
    """
    patch = parse_json(request.body)
    found: list[str] = []
    if may_repeat_fields(request.body, patch):
        found += (f'duplicate field "{each}"' for each in duplicate_fields(request.body))
    if media_type(request) != JSON_PATCH:
        return tuple(found)
    if isinstance(patch, list):
        found += [
            f'unknown field "[{index}].{key}"'
            for index, operation in enumerate(patch)
            if isinstance(operation, dict)
            for key in operation
            if key not in _OPERATION_FIELDS
        ]
    return tuple(f"json patch {each}" for each in found)


def read_patch(request: Request, kind: KindInfo) -> UpdateFunc:
    """Return the change of a PATCH request.

    Raises:
        StatusError: 400, 413 or 415; the change itself raises 400, 413 or 422.
    """
    media = check_content_type(request, kind)
    try:
        body = parse_json(request.body)
    except StatusError as error:
        error.message = f"error decoding patch: {error.message}"
        raise
    return partial(_apply, media, kind, body)


def _apply(media: str, kind: KindInfo, body: object, current: Json) -> Json:
    try:
        if media == JSON_PATCH:
            changed = json_patch(current, body)
            # The only type of patch that can create a document deeper than both.
            check_depth_and_size(changed)
        elif media == MERGE_PATCH:
            changed = merge_patch(current, body)
        else:
            changed = strategic_merge(kind.resource, current, body)
    except PatchError as error:
        raise StatusError(error.status, error.reason, error.message, details={}) from error
    if not isinstance(changed, dict):
        raise bad_request("the patched document is no object")
    return changed
