"""CertificateSigningRequests: their requester, approval and validation.

Those of nodes and of users are signed here; other signers read approved requests, and write the
certificate to the status.
"""

import base64
import binascii
from collections.abc import Mapping
from typing import Any, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from ....model import validation
from ..current_time import now
from ..errors.fields import (
    FieldError,
    duplicate,
    first_positions,
    forbidden,
    invalid,
    not_supported,
    required,
)

Json = dict[str, Any]

_LEGACY_SIGNER = "kubernetes.io/legacy-unknown"
_APPROVED, _DENIED, _FAILED = "Approved", "Denied", "Failed"
_REQUESTER_FIELDS = ("username", "uid", "groups", "extra")
_USAGES = (
    "any", "cert sign", "client auth", "code signing", "content commitment", "crl sign",
    "data encipherment", "decipher only", "digital signature", "email protection",
    "encipher only", "ipsec end system", "ipsec tunnel", "ipsec user", "key agreement",
    "key encipherment", "microsoft sgc", "netscape sgc", "ocsp signing", "s/mime", "server auth",
    "signing", "timestamping",
)  # fmt: skip
_CLIENT_USAGES = {"client auth", "digital signature", "key encipherment"}
_MIN_EXPIRATION = 600
_MAX_SIGNER_PATH = 571
_REQUEST_BEGIN = b"-----BEGIN CERTIFICATE REQUEST-----"


class _Permitted(NamedTuple):
    """What a write of one endpoint may change."""

    approval: bool = False
    certificate: bool = False


def set_requester(request: Json, user_info: Mapping[str, Any]) -> None:
    """Set who has sent a new request, as the UserInfo of reviews."""
    spec = request.get("spec") or {}
    kept = {key: value for key, value in spec.items() if key not in _REQUESTER_FIELDS}
    request["spec"] = {**kept, **user_info}


def prepare_for_update(request: Json, old: Json) -> None:
    """Keep the spec, and existing approvals and denials; set times of conditions."""
    request["spec"] = old["spec"]
    conditions = _conditions(request)
    for kind in (_APPROVED, _DENIED):
        before, after = (
            [index for index, each in enumerate(found) if each.get("type") == kind]
            for found in (_conditions(old), conditions)
        )
        if len(before) == len(after):
            for old_index, index in zip(before, after, strict=True):
                conditions[index] = _conditions(old)[old_index]
    _set_condition_times(conditions, _conditions(old))


def prepare_for_approval(request: Json, old: Json) -> None:
    """Keep everything but the conditions; set their times."""
    conditions = _conditions(request)
    _set_condition_times(conditions, _conditions(old))
    request["spec"] = old["spec"]
    request["status"] = {
        key: value for key, value in (old.get("status") or {}).items() if key != "conditions"
    }
    if conditions:
        request["status"]["conditions"] = conditions


def validate(request: Json, old: Json | None) -> list[FieldError]:
    """Validate a new request, or a write of the object itself."""
    return _validate(request, old, _Permitted())


def validate_status(request: Json, old: Json) -> list[FieldError]:
    """Validate a write of ``/status``, which may set the certificate."""
    return _validate(request, old, _Permitted(certificate=True))


def validate_approval(request: Json, old: Json) -> list[FieldError]:
    """Validate a write of ``/approval``, which may approve or deny."""
    return _validate(request, old, _Permitted(approval=True))


def any_name(name: str) -> str:
    """Accept any name of a request, as kube-apiserver."""
    return ""


def read_of_user(request: Json) -> x509.CertificateSigningRequest | str:
    """Return what a user's request asks for, or why it is not signed."""
    parsed = parse_request(request["spec"].get("request", ""))
    if isinstance(parsed, str):
        return parsed
    usages = set(request["spec"].get("usages") or ())
    if "client auth" not in usages or usages - _CLIENT_USAGES:
        return "usages did not match client auth, digital signature, key encipherment"
    try:
        _ = parsed.extensions
    except (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType) as error:
        return f"the extensions cannot be read: {error}"
    return parsed


def names_masters(request: Json) -> bool:
    """Whether the owner of a certificate would be a member of ``system:masters``."""
    parsed = parse_request((request.get("spec") or {}).get("request", ""))
    if isinstance(parsed, str):
        return False  # validation rejects it
    organizations = parsed.subject.get_attributes_for_oid(x509.NameOID.ORGANIZATION_NAME)
    return any(each.value == "system:masters" for each in organizations)


def _conditions(request: Json) -> list[Json]:
    found: list[Json] = (request.get("status") or {}).get("conditions") or []
    return found


def _set_condition_times(conditions: list[Json], old: list[Json]) -> None:
    written_at = now()
    known = {(each.get("type"), each.get("status")): each.get("lastTransitionTime") for each in old}
    for condition in conditions:
        condition["lastUpdateTime"] = condition.get("lastUpdateTime") or written_at
        condition["lastTransitionTime"] = (
            condition.get("lastTransitionTime")
            or known.get((condition.get("type"), condition.get("status")))
            or written_at
        )


def _validate(request: Json, old: Json | None, permitted: _Permitted) -> list[FieldError]:
    errors = [] if old and old["spec"] == request.get("spec") else _spec_errors(request)
    new_conditions = old is None or _conditions(old) != _conditions(request)
    if new_conditions:
        errors += _condition_errors(request)
    certificate = (request.get("status") or {}).get("certificate") or ""
    old_certificate = ((old or {}).get("status") or {}).get("certificate") or ""
    if certificate != old_certificate and (problem := _certificate_problem(certificate)):
        errors.append(invalid("status.certificate", "<certificate data>", problem))
    if old is not None:
        errors += _transition_errors(_conditions(request), _conditions(old), permitted)
        if certificate != old_certificate:
            if not permitted.certificate:
                errors.append(
                    forbidden("status.certificate", "updates may not set certificate content")
                )
            elif old_certificate:
                text = "updates may not modify existing certificate content"
                errors.append(forbidden("status.certificate", text))
    return errors


def _spec_errors(request: Json) -> list[FieldError]:
    spec: Mapping[str, Any] = request.get("spec") or {}
    errors = []
    parsed = parse_request(spec.get("request", ""))
    if isinstance(parsed, str):
        errors.append(invalid("spec.request", spec.get("request"), parsed))
    elif not parsed.is_signature_valid:
        errors.append(invalid("spec.request", spec.get("request"), "x509: invalid signature"))
    usages = spec.get("usages") or ()
    if not usages:
        errors.append(required("spec.usages"))
    for index, usage in enumerate(usages):
        if usage not in _USAGES:
            errors.append(not_supported(f"spec.usages[{index}]", usage, _USAGES))
    first = first_positions(usages)
    for index, usage in enumerate(usages):
        if first[usage] < index:
            errors.append(duplicate(f"spec.usages[{index}]", usage))
    errors += _signer_errors(spec.get("signerName", ""))
    expiration = spec.get("expirationSeconds")
    if expiration is not None and expiration < _MIN_EXPIRATION:
        text = "may not specify a duration less than 600 seconds (10 minutes)"
        errors.append(invalid("spec.expirationSeconds", expiration, text))
    return errors


def _signer_errors(name: str) -> list[FieldError]:
    path = "spec.signerName"
    if name == _LEGACY_SIGNER:
        return [invalid(path, name, "the legacy signerName is not allowed via this API version")]
    if not name:
        return [required(path)]
    domain, slash, rest = name.partition("/")
    if not slash or "/" in rest:
        text = "must be a fully qualified domain and path of the form 'example.com/signer-name'"
        return [invalid(path, name, text)]
    errors = []
    if problem := validation.dns1123_subdomain_error(domain):
        errors.append(invalid(path, domain, f"validating label {domain!r}: {problem}"))
    elif "." not in domain:
        errors.append(invalid(path, domain, "should be a domain with at least two segments"))
    if len(rest) > _MAX_SIGNER_PATH or not rest:
        errors.append(invalid(path, rest, "the path of a signer has 1 to 571 characters"))
    elif problem := validation.dns1123_subdomain_error(rest):
        errors.append(invalid(path, rest, f"validating label {rest!r}: {problem}"))
    return errors


def parse_request(encoded: object) -> x509.CertificateSigningRequest | str:
    """Return the request of its field, or what is wrong with it."""
    try:
        data = base64.b64decode(encoded if isinstance(encoded, str) else "")
        if _REQUEST_BEGIN not in data:
            return "PEM block type must be CERTIFICATE REQUEST"
        return x509.load_pem_x509_csr(data)
    except (ValueError, binascii.Error, x509.UnsupportedGeneralNameType) as error:
        return str(error)


def _certificate_problem(encoded: str) -> str:
    if not encoded:
        return ""
    try:
        data = base64.b64decode(encoded)
        found = x509.load_pem_x509_certificates(data)
    except (ValueError, binascii.Error) as error:
        return str(error)
    if data.count(b"-----BEGIN ") != len(found):
        return "only CERTIFICATE PEM blocks are allowed"
    if b"".join(each.public_bytes(Encoding.PEM) for each in found).count(b":"):
        return "no PEM block headers are permitted"
    return ""


def _condition_errors(request: Json) -> list[FieldError]:
    errors = []
    path, seen = "status.conditions", list[str]()
    for index, condition in enumerate(_conditions(request)):
        kind, status = condition.get("type", ""), condition.get("status", "")
        if not kind:
            errors.append(required(f"{path}[{index}].type"))
        always_true = kind in (_APPROVED, _DENIED, _FAILED)
        allowed = ("True",) if always_true else ("False", "True", "Unknown")
        if not status:
            errors.append(required(f"{path}[{index}].status"))
        elif status not in allowed:
            errors.append(not_supported(f"{path}[{index}].status", status, allowed))
        if {kind, *seen} >= {_APPROVED, _DENIED} and kind in (_APPROVED, _DENIED):
            text = "Approved and Denied conditions are mutually exclusive"
            errors.append(invalid(path, kind, text))
        if kind in seen:
            errors.append(duplicate(f"{path}[{index}].type", kind))
        seen.append(kind)
    return errors


def _transition_errors(
    conditions: list[Json], old: list[Json], permitted: _Permitted
) -> list[FieldError]:
    errors = []
    for kind in (_APPROVED, _DENIED, _FAILED):
        before, after = (
            [each for each in found if each.get("type") == kind] for found in (old, conditions)
        )
        if len(after) < len(before):
            text = f'updates may not remove a condition of type "{kind}"'
        elif permitted.approval or kind == _FAILED or before == after:
            continue
        elif len(after) > len(before):
            text = f'updates may not add a condition of type "{kind}"'
        else:
            text = f'updates may not modify a condition of type "{kind}"'
        errors.append(forbidden("status.conditions", text))
    return errors
