"""Server-side apply: from the body of a request to a planned write."""

from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from ..current_time import now
from ..errors.status import StatusError, bad_request, conflict, not_found
from ..http import offload, yaml_process
from ..http.bodies import duplicate_fields, parse_json
from ..http.offload import YAML_OFFLOAD_THRESHOLD
from ..http.requests import Json, Request
from . import scale
from .field_managers import check_config, check_scale
from .options import WriteOptions
from .planned_writes import PlannedWrite
from .write_requests import (
    WriteRequest,
    check_body,
    check_name_kept,
    check_version,
    init_metadata,
    prepare_body,
)
from .writes import Writer


async def convert_large_config(request: Request) -> None:
    """Convert a large apply in YAML to JSON in a separate process.

    Raises:
        StatusError: 400, it cannot be decoded.
    """
    if len(request.body) > YAML_OFFLOAD_THRESHOLD and not _is_json(request.body):
        request.body = await offload.yaml_to_json(request.body)


def decode_config(body: bytes) -> Json:
    """Return the applied object in a body, which is YAML or JSON.

    Raises:
        StatusError: 400 or 413.
    """
    config = _decode(body)
    if config is None:
        return {}
    if not isinstance(config, dict):
        names = {list: "array", str: "string", bool: "bool"}
        text = (
            "error decoding YAML: error unmarshaling JSON: while decoding JSON: json: cannot "
            f"unmarshal {names.get(type(config), 'number')} into Go value of type "
            "map[string]interface {}"
        )
        raise bad_request(text)
    return config


def _is_json(body: bytes) -> bool:
    """Whether a body is JSON, as most clients send: YAML that is fast to decode."""
    return body.lstrip().startswith(b"{") and b'"' in body


def _decode(body: bytes) -> Any:
    if _is_json(body):
        try:
            return parse_json(body)
        except StatusError as error:
            if error.code != HTTPStatus.BAD_REQUEST or len(body) > YAML_OFFLOAD_THRESHOLD:
                raise
    try:
        return parse_json(yaml_process.to_json(body))
    except yaml_process.DECODE_ERRORS as error:
        why = getattr(error, "problem", None) or str(error)
        text = f"error decoding YAML: error converting YAML to JSON: yaml: {why}"
        raise bad_request(text) from error


def check_duplicates(request: Request, options: WriteOptions) -> None:
    """Reject duplicate keys in the body of an apply, or warn of them.

    Not those of a large body in YAML, which is converted already.

    Raises:
        StatusError: 400.
    """
    if not (options.strict or options.warn):
        return
    body = request.body
    found, is_json = _duplicates(body)
    if len(body) > YAML_OFFLOAD_THRESHOLD:
        found = [f'key "{each}" already set in map' for each in found]
    elif found or not is_json:
        found = yaml_process.duplicate_keys(body)
    if not found:
        return
    lines = "".join(f"\n  {each}" for each in found)
    text = f"error converting YAML to JSON: yaml: unmarshal errors:{lines}"
    if options.strict:
        raise bad_request(f"error strict decoding YAML: {text}")
    request.warnings.append(text)


def _duplicates(body: bytes) -> tuple[list[str], bool]:
    """Return the duplicate fields of a body in JSON, and whether it is JSON."""
    try:
        return (duplicate_fields(body), True) if _is_json(body) else ([], False)
    except ValueError:  # YAML in braces, such as JSON with a comma after the last member
        return [], False


def plan_apply(
    writer: Writer, write_request: WriteRequest, config: Json, check_create: Callable[[], None]
) -> PlannedWrite:
    """Plan to apply *config*; *check_create* raises unless the user may create the object.

    Raises:
        StatusError: 400, 403, 404, 409, 422, 500.
    """
    kind, path, options = write_request.kind, write_request.object_path, write_request.options
    resource_store = writer.store.resource_store(kind)
    entry = resource_store.latest(*write_request.key)
    if entry is None and path.subresource:
        raise not_found(kind.resource, path.name)
    if path.subresource == "scale":
        check_scale(config)
        config = scale.applied_replicas(kind, config)
    else:
        check_config(kind, config)
    old = None
    if entry is not None:
        old = kind.from_stored(entry.parse())
        kind.normalize_stored(old)
    obj, managed = writer.field_managers.apply(
        kind,
        entry.managed if entry else (),
        subresource=path.subresource,
        old=old,
        config=config,
        manager=options.field_manager,
        force=options.force,
        now=now(),
    )
    obj = {**obj, "metadata": dict(obj.get("metadata") or {})}
    check_name_kept(obj, path.name)
    metadata = check_body(write_request, obj, patched=True)
    if entry is not None:
        check_version(kind.resource, entry, metadata.get("resourceVersion"))
        return writer.plan_replacement(
            write_request, resource_store, entry, obj, patched=True, managed=managed
        )
    if uid := metadata.get("uid"):
        why = (
            f"uid mismatch: the provided object specified uid {uid}, and no existing object was "
            "found"
        )
        raise conflict(kind.resource, path.name, why)
    writer.check_namespace(write_request, metadata)
    check_create()
    init_metadata(metadata)
    if write_request.responses is not None:
        metadata.update(write_request.responses.created)
    prepare_body(write_request, obj, patched=True, applied=True)
    return writer.plan_new(write_request, resource_store, obj, managed)
