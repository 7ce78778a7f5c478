"""Custom resource definitions: defaults, validation and status."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ....machinery.cel.formats import format_named
from ....model import validation
from ..errors.fields import (
    IMMUTABLE,
    FieldError,
    forbidden,
    invalid,
    not_supported,
    quote,
    required,
)
from ..kinds.webhook_clients import (
    ca_bundle_error,
    validate_client_config,
    validate_review_versions,
)
from . import jsonpath, selectable_fields
from .rule_costs import cost_errors
from .rules import are_checked, has_rules
from .schema import schema_errors

Json = dict[str, Any]

CLEANUP_FINALIZER = "customresourcecleanup.apiextensions.k8s.io"

_STRATEGIES = ("None", "Webhook")
_SCOPES = ("Cluster", "Namespaced")
_NUMBERS = {"integer": ("int32", "int64"), "number": ("float", "double")}
"""Formats of numbers, by type."""

_COLUMN_TYPES = ("boolean", "date", "integer", "number", "string")
_IMMUTABLE = (("group",), ("scope",), ("names", "plural"), ("names", "kind"))


def default_crd(crd: Json) -> None:
    """Set default names and the conversion strategy."""
    spec = crd.get("spec")
    if not isinstance(spec, dict):
        return
    conversion = spec.setdefault("conversion", {"strategy": "None"})
    service = ((conversion.get("webhook") or {}).get("clientConfig") or {}).get("service")
    if service is not None:
        service.setdefault("port", 443)
    names = spec.get("names")
    if isinstance(names, dict) and names.get("kind"):
        names.setdefault("singular", names["kind"].lower())
        names.setdefault("listKind", f"{names['kind']}List")


def initial_status(crd: Json) -> Json:
    """Return the status of a new definition."""
    versions = crd.get("spec", {}).get("versions") or ()
    return {
        "conditions": [],
        "acceptedNames": {"plural": "", "kind": ""},
        "storedVersions": [v.get("name", "") for v in versions if v.get("storage")],
    }


def validate_crd(crd: Json, old: Json | None = None) -> list[FieldError]:
    """Validate a definition, and with *old* the update from it; of metadata only the name.

    Includes its schemas: they must be structural, and every default a valid value.
    """
    spec = crd.get("spec") or {}
    names = spec.get("names") or {}
    errors: list[FieldError] = []
    name = crd["metadata"].get("name", "")
    if name != f"{names.get('plural', '')}.{spec.get('group', '')}":
        errors.append(invalid("metadata.name", name, 'must be spec.names.plural+"."+spec.group'))
    errors += _validate_identity(spec, names)
    if old is not None:
        errors += _validate_changed_bundle(crd, old)
    versions = spec.get("versions") or []
    for index, version in enumerate(versions):
        errors += _validate_version(
            version,
            f"spec.versions[{index}]",
            schema_path=_schema_path(index, versions),
            selectable_path=_selectable_path(index, versions),
        )
    if sum(bool(version.get("storage")) for version in versions) != 1:
        text = "must have exactly one version marked as storage version"
        errors.append(invalid("spec.versions", versions, text))
        if not any(version.get("storage") for version in versions):
            text = "must have at least one stored version"
            errors.append(invalid("status.storedVersions", None, text))
    if conversion := spec.get("conversion"):
        errors += _validate_conversion(conversion)
    if old is not None:
        errors += _validate_stored_versions(crd, versions)
    seen = [version.get("name") for version in versions]
    if len(set(seen)) != len(seen):
        errors.append(invalid("spec.versions", seen, "must contain unique version names"))
    if old is not None:
        errors += _validate_immutable(spec, old.get("spec") or {})
    return errors or _cost_errors(versions, (old or {}).get("spec") or {})


def _validate_changed_bundle(crd: Json, old: Json) -> list[FieldError]:
    """Reject an invalid CA bundle of a conversion, unless the one before was invalid, too."""
    bundle, before = _bundle(crd), _bundle(old)
    if not bundle or not (problem := ca_bundle_error(bundle)):
        return []
    if before and ca_bundle_error(before):
        return []
    return [invalid("spec.conversion.webhookClientConfig.caBundle", bundle, problem)]


def _bundle(crd: Json) -> str:
    webhook = ((crd.get("spec") or {}).get("conversion") or {}).get("webhook") or {}
    return (webhook.get("clientConfig") or {}).get("caBundle") or ""


def _validate_conversion(conversion: Json) -> list[FieldError]:
    """Validate the conversion; the paths are those of kube-apiserver's internal type."""
    path, errors = "spec.conversion", list[FieldError]()
    strategy, webhook = conversion.get("strategy", ""), conversion.get("webhook") or {}
    config, versions = webhook.get("clientConfig"), webhook.get("conversionReviewVersions") or ()
    if not strategy:
        errors.append(required(f"{path}.strategy"))
    elif strategy not in _STRATEGIES:
        errors.append(not_supported(f"{path}.strategy", strategy, _STRATEGIES))
    if strategy == "Webhook":
        if config is None:
            text = "required when strategy is set to Webhook"
            errors.append(required(f"{path}.webhookClientConfig", text))
        else:
            validate_client_config(config, f"{path}.webhookClientConfig", errors)
        validate_review_versions(versions, f"{path}.conversionReviewVersions", errors)
        return errors
    text = "should not be set when strategy is not set to Webhook"
    if config is not None:
        errors.append(forbidden(f"{path}.webhookClientConfig", text))
    if versions:
        errors.append(forbidden(f"{path}.conversionReviewVersions", text))
    return errors


def _validate_stored_versions(crd: Json, versions: list[Json]) -> list[FieldError]:
    """Check that objects can be read in all versions in which some may be stored."""
    names = [version.get("name") for version in versions]
    return [
        invalid(
            f"status.storedVersions[{index}]",
            name,
            f"missing from spec.versions; {name} was previously a storage version, and must remain "
            f"in spec.versions until a storage migration ensures no data remains persisted in "
            f"{name} and removes {name} from status.storedVersions",
        )
        for index, name in enumerate((crd.get("status") or {}).get("storedVersions") or ())
        if name not in names
    ]


def _cost_errors(versions: list[Json], old: Json) -> list[FieldError]:
    """Return the errors of rules that could cost too much, in schemas that are not in *old*."""
    known = [_schema(version) for version in old.get("versions") or ()]
    errors: list[FieldError] = []
    for index, version in enumerate(versions):
        schema = _schema(version)
        if schema is None or schema in known or not has_rules(schema):
            continue
        if not are_checked(schema):
            errors += cost_errors(schema, _schema_path(index, versions))
    return errors


def _schema(version: Json) -> Json | None:
    found: Json | None = (version.get("schema") or {}).get("openAPIV3Schema")
    return found


def _schema_path(index: int, versions: list[Json]) -> str:
    """Return the path of a schema: kube-apiserver has another one for a single version."""
    start = "spec.validation" if len(versions) == 1 else f"spec.versions[{index}].schema"
    return f"{start}.openAPIV3Schema"


def _selectable_path(index: int, versions: list[Json]) -> str:
    """Return the path of the selectable fields: kube-apiserver has another one if all are equal."""
    equal = all(
        each.get("selectableFields") == versions[0].get("selectableFields") for each in versions
    )
    return "spec.selectableFields" if equal else f"spec.versions[{index}].selectableFields"


def _validate_identity(spec: Json, names: Json) -> list[FieldError]:
    errors = []
    group = spec.get("group", "")
    if not group:
        errors.append(required("spec.group"))
    elif "." not in group:
        errors.append(invalid("spec.group", group, "should be a domain with at least one dot"))
    elif problem := validation.dns1123_subdomain_error(group):
        errors.append(invalid("spec.group", group, problem))
    scope = spec.get("scope", "")
    if scope not in _SCOPES:
        missing = required("spec.scope")
        errors.append(not_supported("spec.scope", scope, _SCOPES) if scope else missing)
    for key in ("plural", "kind"):
        value = names.get(key, "")
        if not value:
            errors.append(required(f"spec.names.{key}"))
        elif problem := validation.dns1035_label_error(value.lower()):
            errors.append(invalid(f"spec.names.{key}", value, problem))
    if not spec.get("versions"):
        errors.append(required("spec.versions", "must have at least one version"))
    return errors


def _validate_version(
    version: Json, path: str, *, schema_path: str, selectable_path: str
) -> list[FieldError]:
    errors = []
    if problem := validation.dns1035_label_error(version.get("name", "")):
        errors.append(invalid(f"{path}.name", version.get("name", ""), problem))
    schema = _schema(version)
    if schema is None:
        errors.append(required(f"{path}.schema.openAPIV3Schema"))
        if version.get("selectableFields"):
            text = "may only be set when validations.schema is included"
            errors.append(invalid("spec.selectableFields", "", text))
    else:
        errors += schema_errors(schema, schema_path)
    for index, column in enumerate(version.get("additionalPrinterColumns") or ()):
        errors += _validate_column(column, f"{path}.additionalPrinterColumns[{index}]")
    if version.get("selectableFields") and schema is not None:
        fields = version["selectableFields"]
        errors += selectable_fields.validate(fields, schema, selectable_path)
    scale = (version.get("subresources") or {}).get("scale")
    if scale is not None:
        for key in ("specReplicasPath", "statusReplicasPath"):
            errors += _validate_path(scale.get(key, ""), f"{path}.subresources.scale.{key}")
    return errors


def _validate_column(column: Json, path: str) -> list[FieldError]:
    errors = [
        required(f"{path}.{key}") for key in ("name", "type", "jsonPath") if not column.get(key)
    ]
    if column.get("type") and column["type"] not in _COLUMN_TYPES:
        errors.append(not_supported(f"{path}.type", column["type"], _COLUMN_TYPES))
    if column.get("jsonPath"):
        try:
            jsonpath.find(column["jsonPath"], {})
        except ValueError as error:
            errors.append(invalid(f"{path}.jsonPath", column["jsonPath"], str(error)))
    return errors


def _validate_path(text: str, path: str) -> list[FieldError]:
    if not text:
        return [required(path)]
    try:
        jsonpath.fields(text)
    except ValueError as error:
        return [invalid(path, text, str(error))]
    return []


def _validate_immutable(spec: Json, old: Json) -> list[FieldError]:
    errors = []
    for keys in _IMMUTABLE:
        new_value: Any = spec
        old_value: Any = old
        for key in keys:
            new_value = (new_value or {}).get(key)
            old_value = (old_value or {}).get(key)
        if new_value != old_value:
            errors.append(invalid(".".join(("spec", *keys)), new_value, IMMUTABLE))
    return errors


def format_warnings(crd: Json, old: Json | None) -> list[str]:
    """Warn of formats in the schemas of a definition that have no effect, if they are new."""
    found, known = (
        dict.fromkeys(
            name
            for version in each["spec"].get("versions") or ()
            for name in _unrecognized_formats(_schema(version) or {})
        )
        for each in (crd, old or {"spec": {}})
    )
    return [f"unrecognized format {quote(name)}" for name in found if name not in known]


def _unrecognized_formats(schema: Json) -> Iterator[str]:
    name, kind = schema.get("format"), schema.get("type") or "string"
    if name:
        recognized = name in _NUMBERS.get(kind, ()) or (
            kind == "string" and format_named(name) is not None
        )
        if not recognized:
            yield name
    below = [*(schema.get("properties") or {}).values(), schema.get("not")]
    below += [schema.get("items"), schema.get("additionalProperties")]
    for junctor in ("allOf", "anyOf", "oneOf"):
        below += schema.get(junctor) or ()
    for node in below:
        if isinstance(node, dict):
            yield from _unrecognized_formats(node)


def is_established(crd: Json) -> bool:
    """Return whether the kinds of *crd* are to be served."""
    conditions = (crd.get("status") or {}).get("conditions") or []
    return any(c.get("type") == "Established" and c.get("status") == "True" for c in conditions)


def reconciled_status(crd: Json, others: Iterable[Json], now: str) -> Json:
    """Return the desired status of *crd*, given all definitions: names, then Established.

    *others* may contain *crd*; *now* is the transition time of changed conditions. The result
    equals the old status if nothing changes.
    """
    spec, old = crd["spec"], crd.get("status") or {}
    accepted, (reason, text) = _accept_names(crd, others)
    fine = not reason
    conditions = {each["type"]: each for each in old.get("conditions") or ()}
    _set_condition(
        conditions,
        ("NamesAccepted", fine, reason or "NoConflicts", text or "no conflicts found"),
        now,
    )
    was = conditions.get("Established", {}).get("status") == "True"
    if fine and not was and (bundle := _bundle(crd)) and ca_bundle_error(bundle):
        message = "The conversion webhook CABundle is invalid"
        _set_condition(conditions, ("Established", False, "InvalidCABundle", message), now)
    elif fine and not was:
        message = "the initial names have been accepted"
        _set_condition(conditions, ("Established", True, "InitialNamesAccepted", message), now)
    elif not fine and not was:
        _set_condition(
            conditions, ("Established", False, "NotAccepted", "not all names are accepted"), now
        )
    stored = list(old.get("storedVersions") or ())
    current = [v["name"] for v in spec["versions"] if v.get("storage") and v["name"] not in stored]
    return {
        "conditions": list(conditions.values()),
        "acceptedNames": accepted,
        "storedVersions": [*stored, *current],
    }


def terminating_status(crd: Json, now: str, *, in_progress: bool = False) -> Json:
    """Return the status of a terminating definition."""
    status: Json = dict(crd.get("status") or {})
    conditions = {each["type"]: each for each in status.get("conditions") or ()}
    if in_progress:
        reason = ("InstanceDeletionInProgress", "CustomResource deletion is in progress")
    else:
        reason = (
            "InstanceDeletionPending",
            "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon",
        )
    _set_condition(conditions, ("Terminating", True, *reason), now)
    return {**status, "conditions": list(conditions.values())}


def _set_condition(
    conditions: dict[str, Json], condition: tuple[str, bool, str, str], now: str
) -> None:
    kind, holds, reason, message = condition
    old = conditions.get(kind, {})
    status = "True" if holds else "False"
    changed = old.get("status") != status
    conditions[kind] = {
        "type": kind,
        "status": status,
        "lastTransitionTime": now if changed else old.get("lastTransitionTime", now),
        "reason": reason,
        "message": message,
    }


def _accept_names(crd: Json, others: Iterable[Json]) -> tuple[Json, tuple[str, str]]:
    """Return the accepted names, and the first conflict as (reason, message)."""
    names, group = crd["spec"]["names"], crd["spec"]["group"]
    taken: set[str] = set()
    kinds: set[str] = set()
    for other in others:
        if other["metadata"]["name"] != crd["metadata"]["name"] and other["spec"]["group"] == group:
            held = (other.get("status") or {}).get("acceptedNames") or {}
            taken |= {held.get("plural", ""), held.get("singular", "")}
            taken |= set(held.get("shortNames") or ())
            kinds |= {held.get("kind", ""), held.get("listKind", "")}
    before = (crd.get("status") or {}).get("acceptedNames") or {}
    accepted: Json = {}
    problem = ("", "")
    for key, reason in _NAME_KEYS:
        value = names.get(key)
        if value is None:
            continue
        used = kinds if key in ("kind", "listKind") else taken
        clash = [name for name in ([value] if isinstance(value, str) else value) if name in used]
        if not clash:
            accepted[key] = value
            continue
        problem = problem if problem[0] else (reason, f'"{clash[0]}" is already in use')
        if before.get(key):
            accepted[key] = before[key]
    if names.get("categories"):
        accepted["categories"] = names["categories"]
    return accepted, problem


_NAME_KEYS: tuple[tuple[str, str], ...] = (
    ("plural", "PluralConflict"),
    ("singular", "SingularConflict"),
    ("shortNames", "ShortNamesConflict"),
    ("kind", "KindConflict"),
    ("listKind", "ListKindConflict"),
)


def served_versions(spec: Mapping[str, Any]) -> list[Json]:
    """Return the served versions, preferred first: v2 before v1, both before v2beta1, v1alpha1."""
    served = [version for version in spec["versions"] if version.get("served")]
    return sorted(served, key=lambda version: version_rank(version["name"]))


def version_rank(name: str) -> tuple[int, int, int, str]:
    """Return a sort key: preferred versions sort first."""
    number, stage = name.removeprefix("v"), 0
    minor = "0"
    for prefix, rank in (("beta", 1), ("alpha", 2)):
        if prefix in number:
            (number, _, minor), stage = number.partition(prefix), rank
    if not name.startswith("v") or not number.isdecimal() or not (minor or "0").isdecimal():
        return (3, 0, 0, name)
    return (stage, -int(number), -int(minor or "0"), name)
