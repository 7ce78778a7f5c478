"""Parse and validate the parameters of reads and writes."""

import base64
import binascii
import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from ....model import durations
from ....model.base import ApiStruct
from ....model.selectors import SelectorError, parse_field_selector, parse_label_selector
from ..errors.fields import (
    FieldError,
    forbidden,
    invalid,
    not_supported,
    required,
    too_long,
)
from ..errors.status import StatusError, bad_request, invalid_options
from ..http.bodies import decode_body, media_type
from ..http.requests import Json, ObjectPath, Request
from ..kinds.info import KindInfo
from ..media_types import APPLY_PATCH
from ..storage.watch import SelectionPredicate

EXACT, NOT_OLDER = "Exact", "NotOlderThan"
_MAX_MANAGER_LENGTH = 128
_POLICIES = ("Foreground", "Background", "Orphan")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """Options of a LIST or WATCH."""

    selection: SelectionPredicate
    resource_version: int | None
    """``resourceVersion``; ``None`` if not given."""

    resource_version_match: str
    limit: int
    continue_from: tuple[int, str] | None
    """Version and last key of the previous page."""

    send_initial_events: bool | None
    bookmarks: bool
    timeout: int | None


def read_options(
    request: Request, kind: KindInfo, object_path: ObjectPath, *, watch: bool
) -> ReadOptions:
    """Parse and validate the options of a LIST or WATCH.

    Raises:
        StatusError: 400 or 422.
    """
    query = request.query
    selection = _selection(request, kind, object_path)
    version = _version(query.get("resourceVersion", ""), watch=watch)
    match = query.get("resourceVersionMatch", "")
    initial = request.bool_param("sendInitialEvents") if "sendInitialEvents" in query else None
    token = query.get("continue", "")
    errors = _check_match(match, version, initial, watch=watch)
    if errors:
        raise invalid_options("ListOptions", errors)
    selection = _with_known_fields(selection, kind)
    if token and version:
        raise bad_request("specifying resource version is not allowed when using continue")
    return ReadOptions(
        selection=selection,
        resource_version=version,
        resource_version_match=match,
        limit=max(request.int_param("limit") or 0, 0),
        continue_from=_decode_continue(token) if token else None,
        send_initial_events=initial,
        bookmarks=request.bool_param("allowWatchBookmarks"),
        timeout=request.int_param("timeoutSeconds"),
    )


def _check_match(
    match: str, version: int | None, initial: bool | None, *, watch: bool
) -> list[FieldError]:
    where = "resourceVersionMatch"
    if watch:
        return _check_watch_match(match, initial)
    if initial is not None:
        return [forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list")]
    if not match:
        return []
    if version is None:
        text = "resourceVersionMatch is forbidden unless resourceVersion is provided"
        return [forbidden(where, text)]
    if match not in (EXACT, NOT_OLDER):
        return [not_supported(where, match, (EXACT, NOT_OLDER, ""))]
    if match == EXACT and version == 0:
        text = 'resourceVersionMatch "exact" is forbidden for resourceVersion "0"'
        return [forbidden(where, text)]
    return []


def _check_watch_match(match: str, initial: bool | None) -> list[FieldError]:
    where = "resourceVersionMatch"
    if initial is None:
        text = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
        errors = [forbidden(where, text)] if match else []
        if match not in ("", NOT_OLDER):
            errors.append(not_supported(where, match, (NOT_OLDER,)))
        return errors
    if match != NOT_OLDER:
        text = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
        errors = [forbidden(where, text)]
        if match:
            errors.append(not_supported(where, match, (NOT_OLDER,)))
        return errors
    return []


def _version(text: str, *, watch: bool) -> int | None:
    if not text:
        return None
    if text.isdecimal() and text.isascii():
        return int(text)
    problem = invalid_version(text)
    if watch:
        raise StatusError(500, "", problem)
    raise bad_request(f"invalid resource version: {problem}")


def invalid_version(text: str) -> str:
    """Return the error of a resource version that is no number."""
    return (
        f'resourceVersion: Invalid value: "{text}": strconv.ParseUint: parsing "{text}": '
        "invalid syntax"
    )


def _selection(request: Request, kind: KindInfo, object_path: ObjectPath) -> SelectionPredicate:
    labels = request.query.get("labelSelector", "")
    fields = request.query.get("fieldSelector", "")
    try:
        selector = parse_label_selector(labels) if labels else None
        requirements = tuple(parse_field_selector(fields)) if fields else ()
    except SelectorError as error:
        raise bad_request(str(error)) from error
    return SelectionPredicate(
        namespace=object_path.namespace,
        labels=selector,
        fields=requirements,
        kind=kind if kind.custom else None,
    )


def _with_known_fields(selection: SelectionPredicate, kind: KindInfo) -> SelectionPredicate:
    """Return *selection* with the field labels of the stored objects.

    Raises:
        StatusError: 400, the kind lacks one.
    """
    for each in selection.fields:
        if kind.field_value({}, each.path) is None:
            raise bad_request(_unknown_field_label(kind, each.path))
    if not kind.stored_labels:
        return selection
    labels = kind.stored_labels
    fields = (each._replace(path=labels.get(each.path, each.path)) for each in selection.fields)
    return dataclasses.replace(selection, fields=tuple(fields))


def _unknown_field_label(kind: KindInfo, label: str) -> str:
    """Return kube-apiserver's message for a field label that the kind does not have."""
    if kind.resource.group == "batch" and kind.resource.kind == "Job":
        return f'field label "{label}" not supported for Job'
    if kind.custom or kind.field_labels:
        return f"field label not supported: {label}"
    known = '"metadata.name", "metadata.namespace"'
    return f'"{label}" is not a known field selector: only {known}'


def encode_continue(version: int, key: str) -> str:
    """Return the ``continue`` token of a page that ends with *key*."""
    body = msgspec.json.encode({"v": "meta.k8s.io/v1", "rv": version, "start": f"{key}\0"})
    return base64.urlsafe_b64encode(body).decode().rstrip("=")


def _decode_continue(token: str) -> tuple[int, str]:
    try:
        body = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
        read = msgspec.json.decode(body)
        return int(read["rv"]), str(read["start"]).removesuffix("\0")
    except (binascii.Error, msgspec.DecodeError, LookupError, TypeError, ValueError) as error:
        text = f"invalid continue token: continue key is not valid: {error}"
        raise bad_request(text) from error


class WriteOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a create, update or patch."""

    dry_run: bool = False
    strict: bool = False
    """Reject unknown and duplicate fields."""

    warn: bool = False
    """Warn of them."""

    field_manager: str = "unknown"
    """Who owns the changed fields."""

    force: bool = False
    """Whether an apply may change fields of other managers."""

    def for_review(self, operation: str) -> Json:
        """Return the options of a CREATE or UPDATE as reviews contain them."""
        found: Json = {
            "kind": f"{operation.capitalize()}Options",
            "apiVersion": "meta.k8s.io/v1",
            "fieldManager": self.field_manager,
        }
        if self.dry_run:
            found["dryRun"] = ["All"]
        return found


INTERNAL = WriteOptions(field_manager="batholith-apiserver")
"""Options of the server's own controllers."""


@functools.lru_cache(maxsize=256)
def _default_options(user_agent: str) -> WriteOptions:
    return WriteOptions(warn=True, field_manager=_manager_of(user_agent))


def _manager_of(user_agent: str) -> str:
    """Return the manager of a client that names none: the first part of its User-Agent."""
    name = user_agent.partition("/")[0]
    # Of the characters that fit, the printable ones.
    name = name.encode()[:_MAX_MANAGER_LENGTH].decode(errors="ignore")
    return "".join(filter(str.isprintable, name)) or "unknown"


def write_options(request: Request, kind: str) -> WriteOptions:
    """Parse and validate the options of a write; *kind* is CreateOptions or the like.

    Raises:
        StatusError: 422.
    """
    query = request.query
    applies = kind == "PatchOptions" and media_type(request) == APPLY_PATCH
    default = _default_options(request.headers.get("user-agent", ""))
    if not query and not applies:
        return default
    manager = query.get("fieldManager", "")
    errors = []
    dry_run = query.get("dryRun")
    if dry_run not in (None, "All"):
        errors.append(not_supported("dryRun", [dry_run], ("All",)))
    validation = query.get("fieldValidation", "")
    if validation not in ("", "Ignore", "Strict", "Warn"):
        allowed = ("", "Ignore", "Strict", "Warn")
        errors.append(not_supported("fieldValidation", validation, allowed))
    if applies and not manager:
        errors.append(required("fieldManager", "is required for apply patch"))
    if kind == "PatchOptions" and "force" in query and not applies:
        errors.append(forbidden("force", "may not be specified for non-apply patch"))
    errors += _check_manager(manager)
    if errors:
        raise invalid_options(kind, errors)
    return WriteOptions(
        dry_run=dry_run == "All",
        strict=validation == "Strict",
        warn=validation != "Ignore",
        field_manager=manager or default.field_manager,
        force=applies and request.bool_param("force"),
    )


def _check_manager(name: str) -> list[FieldError]:
    """Validate the name of a field manager."""
    where = "fieldManager"
    errors = (
        [too_long(where, _MAX_MANAGER_LENGTH)] if len(name.encode()) > _MAX_MANAGER_LENGTH else []
    )
    for index, sign in enumerate(name):
        if not sign.isprintable():
            text = f"invalid character U+{ord(sign):04X} (at position {index})"
            return [*errors, invalid(where, name, text)]
    return errors


def request_timeout(query: Mapping[str, str]) -> float | None:
    """Return the seconds after which the client wants no response; ``None``: there is no limit.

    Raises:
        StatusError: 400.
    """
    text = query.get("timeout")
    if not text:
        return None
    try:
        seconds = durations.parse(text).total_seconds()
        return seconds if seconds > 0 else None
    except durations.DurationError as error:
        problem = f"invalid timeout specified in the request URL - {error}"
        raise bad_request(problem) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteOptions:
    """Options of a deletion."""

    grace_period: int | None = None
    """Seconds; ``None`` means the object's default."""

    uid: str | None = None
    resource_version: str | None = None
    propagation_policy: str = ""
    orphan_dependents: bool | None = None
    """The older form of the policy, if the request has it."""

    dry_run: bool = False

    def for_review(self) -> Json:
        """Return the options as reviews contain them."""
        found: Json = {"kind": "DeleteOptions", "apiVersion": "meta.k8s.io/v1"}
        if self.grace_period is not None:
            found["gracePeriodSeconds"] = self.grace_period
        if self.propagation_policy:
            found["propagationPolicy"] = self.propagation_policy
        if self.dry_run:
            found["dryRun"] = ["All"]
        return found


class _Preconditions(ApiStruct, frozen=True):
    uid: str | None = None
    resource_version: str | None = None


class _DeleteOptionsBody(ApiStruct, frozen=True):
    """DeleteOptions in JSON."""

    grace_period_seconds: int | None = None
    preconditions: _Preconditions | None = None
    propagation_policy: str | None = None
    orphan_dependents: bool | None = None
    dry_run: list[str] | None = None


def _decode_delete_options(body: Json) -> _DeleteOptionsBody:
    try:
        return msgspec.convert(body, _DeleteOptionsBody)
    except msgspec.ValidationError as error:
        raise bad_request(f"the body cannot be handled as DeleteOptions: {error}") from error


def parse_delete_options(body: Json) -> DeleteOptions:
    """Parse DeleteOptions inside another object, such as an Eviction.

    Raises:
        StatusError: 400.
    """
    sent = _decode_delete_options(body)
    conditions = sent.preconditions or _Preconditions()
    return DeleteOptions(
        grace_period=sent.grace_period_seconds,
        uid=conditions.uid,
        resource_version=conditions.resource_version,
        propagation_policy=sent.propagation_policy or "",
        dry_run=bool(sent.dry_run),
    )


def delete_options(request: Request) -> DeleteOptions:
    """Parse the options of a deletion from its body or, without one, from its parameters.

    Raises:
        StatusError: 400, 415 or 422.
    """
    body = decode_body(request) if request.body.strip() else {}
    if body.get("kind", "DeleteOptions") != "DeleteOptions":
        raise bad_request(f"the body is of kind {body['kind']!r}, not DeleteOptions")
    sent = _decode_delete_options(body)
    query = request.query
    policy = sent.propagation_policy or query.get("propagationPolicy", "")
    orphan = sent.orphan_dependents
    if orphan is None and "orphanDependents" in query:
        orphan = request.bool_param("orphanDependents")
    dry_run = sent.dry_run or [name for name in (query.get("dryRun"),) if name is not None]
    errors = []
    if policy and orphan is not None:
        text = "orphanDependents and deletionPropagation cannot be both set"
        errors.append(invalid("propagationPolicy", policy, text))
    elif policy and policy not in _POLICIES:
        errors.append(not_supported("propagationPolicy", policy, (*_POLICIES, "nil")))
    if any(value != "All" for value in dry_run):
        errors.append(not_supported("dryRun", dry_run, ("All",)))
    if errors:
        raise invalid_options("DeleteOptions", errors)
    if orphan is not None:
        policy = "Orphan" if orphan else "Background"
    grace, conditions = sent.grace_period_seconds, sent.preconditions or _Preconditions()
    return DeleteOptions(
        grace_period=request.int_param("gracePeriodSeconds") if grace is None else grace,
        uid=conditions.uid,
        resource_version=conditions.resource_version,
        propagation_policy=policy,
        orphan_dependents=orphan,
        dry_run=bool(dry_run),
    )
