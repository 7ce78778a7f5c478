"""Pod specs that have been validated before.

The pods of a controller have the same spec, but for values of environment variables and generated
names. Validation does not depend on these, so it happens once for all of them.
"""

import re
from typing import Any

import msgspec

from ..errors.fields import FieldError
from .pod_validation import has_valid_names, validate_pod_spec

Json = dict[str, Any]

_MAX_SPECS = 256
_MAX_LENGTH = 8192
"""Bytes of a spec that is remembered, so that all of them need no more than 2 MiB."""

_CONTAINER_LISTS = ("containers", "initContainers")
_TOKEN_VOLUME = re.compile("kube-api-access-[a-z0-9]{5}")
_OWN_NAMES = ("hostname", "nodeName")
"""Names that differ between the pods of a controller, and that no other field has to fit."""

_encode = msgspec.json.Encoder().encode
_valid: dict[bytes, None] = {}


def validate_new_pod_spec(spec: Json) -> list[FieldError]:
    """Return the errors of the spec of a new pod, as :func:`validate_pod_spec`."""
    shape = _shape_of(spec)
    if shape in _valid and has_valid_names(spec, _OWN_NAMES):
        return []
    errors = validate_pod_spec(spec, "spec")
    if not errors and len(shape) <= _MAX_LENGTH:
        if len(_valid) >= _MAX_SPECS:
            _valid.clear()
        _valid[shape] = None
    return errors


def _shape_of(spec: Json) -> bytes:
    """Return the spec without what its validity does not depend on.

    Two specs of one shape differ in the values of variables, in their own names and, wherever it
    is mentioned, in the generated name of the volume with the token, which has a fixed form.
    """
    shape = {key: value for key, value in spec.items() if key not in _OWN_NAMES}
    for kind in _CONTAINER_LISTS:
        if containers := spec.get(kind):
            shape[kind] = [
                {**each, "env": _shape_of_variables(each["env"])} if each.get("env") else each
                for each in containers
            ]
    text = _encode(shape)
    volumes = spec.get("volumes")
    name = volumes[-1].get("name", "") if volumes else ""
    if _TOKEN_VOLUME.fullmatch(name):
        text = text.replace(name.encode(), b"\n")  # encoded JSON contains no line break
    return text


def _shape_of_variables(variables: list[Json]) -> list[Any]:
    return [
        each if "valueFrom" in each else {key: each[key] for key in each if key != "value"}
        for each in variables
    ]
