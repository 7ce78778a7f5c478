"""Build kinds from a custom resource definition."""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import msgspec

from ....model import validation
from ....model.names import Resource
from ..errors.fields import FieldError, MalformedError, invalid
from ..kinds.conversion import ConversionWebhook, Convert
from ..kinds.info import CUSTOM_VERBS, Column, KindInfo, Subresource, common_subresources
from ..kinds.metadata import validate_metadata
from ..kinds.typed_json import decode_metadata
from . import jsonpath
from .crds import served_versions, validate_crd
from .schema import StructuralSchema

__all__ = ["DEFAULT_COLUMN", "custom_kinds", "validate_crd"]

DEFAULT_COLUMN = Column(name="Age", type="date", json_path=".metadata.creationTimestamp")
"""The second column of a kind that declares none."""
_BLOCKING = frozenset(
    {
        "FieldValueRequired",
        "FieldValueNotSupported",
        "FieldValueTooLong",
        "FieldValueTooMany",
        "FieldValueTypeInvalid",
    }
)
_UNCHECKED = FieldError(
    "FieldValueInvalid",
    "<nil>",
    "Invalid value: null: some validation rules were not checked because the object was invalid; "
    "correct the existing errors to complete validation",
)


class CustomResourceStrategy:
    """Strategy of one version of a custom kind."""

    def __init__(
        self, resource: Resource, schema: StructuralSchema, replicas: tuple[str, ...]
    ) -> None:
        self._resource = resource
        self._schema = schema
        self._replicas = replicas

    def prune(self, obj: dict[str, Any]) -> list[str]:
        """Remove unknown fields and return their paths.

        Raises:
            MalformedError: metadata cannot be decoded.
        """
        unknown = decode_metadata(obj.get("metadata"), self._resource)
        return unknown + self._schema.prune(obj)

    def default(self, obj: dict[str, Any]) -> None:
        """Set the defaults of the schema."""
        self._schema.default(obj)

    def prepare_for_create(self, obj: dict[str, Any]) -> None:
        """Do nothing: a custom kind has no initial status."""

    def prepare_for_update(self, obj: dict[str, Any], old: dict[str, Any]) -> None:
        """Do nothing: no field is kept if an update removes it."""

    def validate(self, obj: dict[str, Any], old: dict[str, Any] | None) -> list[FieldError]:
        """Validate kind, metadata, schema and replicas."""
        errors = []
        if obj.get("kind") != self._resource.kind:
            errors.append(invalid("kind", obj.get("kind"), f"must be {self._resource.kind}"))
        errors += validate_metadata(
            obj["metadata"],
            validation.dns1123_subdomain_error,
            namespaced=self._resource.namespaced,
            old=old["metadata"] if old else None,
        )
        errors += self._schema.validate(obj, old)
        errors += self._check_replicas(obj)
        if self._schema.has_rules:
            blocked = any(error.reason in _BLOCKING for error in errors)
            errors += [_UNCHECKED] if blocked else self._schema.validate_rules(obj, old)
        return errors

    def validate_status(self, obj: dict[str, Any], old: dict[str, Any]) -> list[FieldError]:
        """Validate the whole object: all of it has one schema."""
        return self.validate(obj, old)

    def warnings(self, obj: dict[str, Any], old: dict[str, Any] | None) -> list[str]:
        """Return nothing: schemas bring no warnings."""
        return []

    def _check_replicas(self, obj: dict[str, Any]) -> list[FieldError]:
        value: Any = obj
        for key in self._replicas:
            value = value.get(key) if isinstance(value, dict) else None
        path = "." + ".".join(self._replicas)
        if type(value) is not int:
            return []
        if value < 0:
            return [invalid(path, value, "should be a non-negative integer")]
        if value > 2**31 - 1:
            return [invalid(path, value, f"should be less than or equal to {2**31 - 1}")]
        return []


def custom_kinds(crd: dict[str, Any]) -> list[KindInfo]:
    """Return the kind of *crd* in each served version, preferred first.

    The definition must have passed :func:`validate_crd` and be defaulted.

    Raises:
        MalformedError: the definition has no storage version.
    """
    spec = crd["spec"]
    stored = next((v for v in spec["versions"] if v.get("storage")), None)
    if stored is None:
        raise MalformedError("no version is marked as storage version")
    conversion = spec.get("conversion") or {}
    webhook = None
    if conversion.get("strategy") == "Webhook":
        webhook = ConversionWebhook(conversion.get("webhook") or {})
    kinds = [
        _kind_info(spec, version, stored["name"], webhook) for version in served_versions(spec)
    ]
    if webhook is not None:
        webhook.prune = {kind.resource.api_version: kind.strategy.prune for kind in kinds}
    elif any(version["schema"] != stored["schema"] for version in served_versions(spec)):
        kinds = _with_pruning(kinds, _compile(msgspec.json.encode(_schema(stored))))
    return kinds


def _with_pruning(kinds: list[KindInfo], stored: StructuralSchema) -> list[KindInfo]:
    """Return *kinds*, whose versions differ, with a conversion that removes unknown fields."""

    def to(api_version: str, prune: Callable[[dict[str, Any]], Any]) -> Convert:
        def convert(obj: dict[str, Any]) -> dict[str, Any]:
            obj = {**obj, "apiVersion": api_version}
            prune(obj)
            return obj

        return convert

    return [
        kind
        if kind.resource.version == kind.storage_version
        else replace(
            kind,
            conversion=(
                to(kind.stored_api_version, stored.prune),
                to(kind.resource.api_version, kind.strategy.prune),
            ),
        )
        for kind in kinds
    ]


def _schema(version: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = version["schema"]["openAPIV3Schema"]
    return found


def _kind_info(
    spec: dict[str, Any],
    version: dict[str, Any],
    stored: str,
    webhook: ConversionWebhook | None,
) -> KindInfo:
    names = spec["names"]
    resource = Resource(
        spec["group"],
        version["name"],
        names["plural"],
        names["kind"],
        namespaced=spec["scope"] == "Namespaced",
    )
    subresources = version.get("subresources") or {}
    scale = subresources.get("scale") or {}
    replicas = jsonpath.fields(scale["specReplicasPath"]) if scale else ()
    conversion = None
    if webhook is not None:
        conversion = webhook.to(f"{spec['group']}/{stored}"), webhook.to(resource.api_version)
    schema = _compile(msgspec.json.encode(_schema(version)))
    return KindInfo(
        resource=resource,
        strategy=CustomResourceStrategy(resource, schema, replicas),
        singular=names.get("singular") or names["kind"].lower(),
        list_kind=names.get("listKind") or f"{names['kind']}List",
        short_names=tuple(names.get("shortNames") or ()),
        categories=tuple(names.get("categories") or ()),
        verbs=CUSTOM_VERBS,
        subresources=_subresources(resource, subresources),
        field_labels=_field_labels(version),
        update_needs_rv=True,
        custom=True,
        columns=_columns(version),
        openapi=schema.openapi,
        scale_paths=scale,
        storage_version=stored,
        conversion=conversion,
        conversion_webhook=webhook,
        offload_threshold=schema.offload_threshold,
        generation="all",
    )


@lru_cache(maxsize=16)
def _compile(openapi: bytes) -> StructuralSchema:
    """Compile a schema once per process: tests start many servers with the same definitions."""
    return StructuralSchema(msgspec.json.decode(openapi))


def _subresources(resource: Resource, subresources: dict[str, Any]) -> dict[str, Subresource]:
    common = common_subresources(resource)
    return {name: subresource for name, subresource in common.items() if name in subresources}


def _field_labels(version: dict[str, Any]) -> dict[str, tuple[tuple[str, ...], str]]:
    paths = [jsonpath.fields(f["jsonPath"]) for f in version.get("selectableFields") or ()]
    return {".".join(path): (path, "") for path in paths}


def _columns(version: dict[str, Any]) -> tuple[Column, ...]:
    declared = version.get("additionalPrinterColumns")
    if not declared:
        return (DEFAULT_COLUMN,)
    return tuple(
        Column(
            name=column["name"],
            type=column["type"],
            json_path=column["jsonPath"],
            format=column.get("format", ""),
            description=column.get("description", ""),
            priority=column.get("priority", 0),
        )
        for column in declared
    )
