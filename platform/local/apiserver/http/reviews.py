"""Reviews: token and access checks of other processes."""

from typing import Any

from ....model.names import Resource
from ..errors.fields import FieldError
from ..errors.fields import invalid as invalid_field
from ..errors.status import bad_request, invalid
from .auth import Authenticator, User
from .requests import Json

AUDIENCE = "https://kubernetes.default.svc"
"""Audience of the tokens: the server itself."""

_ALLOWED_REASON = "every user with a token may do everything"
_ATTRIBUTES_CONFLICT = (
    "exactly one of nonResourceAttributes or resourceAttributes must be specified"
)


def review(
    resource: Resource, obj: Json, *, namespace: str, user: User, authenticator: Authenticator
) -> Json:
    """Handle a TokenReview, SelfSubjectReview or one of the access reviews.

    Every access is allowed; *namespace* is that of the request.

    Raises:
        StatusError: 400 or 422, the review is incomplete.
    """
    given = obj.get("spec")
    spec: Json = given if isinstance(given, dict) else {}
    if resource.kind == "TokenReview":
        status = _review_token(spec, authenticator)
    elif resource.kind == "SelfSubjectReview":
        status = {"userInfo": user.to_user_info()}
    elif resource.kind == "SelfSubjectRulesReview":
        status = _rules(spec)
    else:
        errors = _check_access(resource.kind, spec, namespace)
        if errors:
            raise invalid(Resource(resource.group, resource.version, "", ""), "", errors)
        status = {"allowed": True, "reason": _ALLOWED_REASON}
    return {**obj, "status": status}


def _review_token(spec: Json, authenticator: Authenticator) -> Json:
    token = str(spec.get("token") or "")
    if not token:
        raise bad_request("token is required for TokenReview in authentication")
    found = authenticator.authenticate_token(token)
    if found is None or AUDIENCE not in (spec.get("audiences") or [AUDIENCE]):
        return {"user": {}, "error": "invalid bearer token"}
    return {"authenticated": True, "user": found.to_user_info(), "audiences": [AUDIENCE]}


def _rules(spec: Json) -> Json:
    if not spec.get("namespace"):
        raise bad_request("no namespace on request")
    return {
        "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
        "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
        "incomplete": False,
    }


def _check_access(kind: str, spec: Json, namespace: str) -> list[FieldError]:
    errors = []
    attributes, other = (spec.get(f"{each}Attributes") for each in ("resource", "nonResource"))
    if attributes is None and other is None:
        errors.append(invalid_field("spec.resourceAttributes", None, _ATTRIBUTES_CONFLICT))
    if attributes is not None and other is not None:
        text = "cannot be specified in combination with resourceAttributes"
        errors.append(invalid_field("spec.nonResourceAttributes", other, text))
    if kind != "SelfSubjectAccessReview" and not (spec.get("user") or spec.get("groups")):
        text = "at least one of user or group must be specified"
        errors.append(invalid_field("spec.user", "", text))
    if kind == "LocalSubjectAccessReview":
        errors += _check_local(attributes, namespace)
    return errors


def _check_local(attributes: Any, namespace: str) -> list[FieldError]:
    given = attributes.get("namespace", "") if isinstance(attributes, dict) else namespace
    if given == namespace:
        return []
    text = "must match metadata.namespace"
    return [invalid_field("spec.resourceAttributes.namespace", given, text)]
