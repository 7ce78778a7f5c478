"""Reviews: token and access checks of other processes."""

from typing import Any

from ....model.names import Resource
from ..current_time import now
from ..errors.fields import FieldError, required
from ..errors.fields import invalid as invalid_field
from ..errors.status import bad_request, invalid
from ..http.auth import AUDIENCE, Authenticator, User
from ..http.requests import Json
from .attributes import selected_node
from .authorizer import Authorizer
from .node_authorizer import node_of
from .rules import Attributes, PolicyRule

_ATTRIBUTES_CONFLICT = (
    "exactly one of nonResourceAttributes or resourceAttributes must be specified"
)

_KEPT_METADATA = ("namespace", "managedFields")
_NODE_RULES = "node authorizer does not support user rule resolution"


def review(
    resource: Resource,
    obj: Json,
    *,
    namespace: str,
    user: User,
    authenticator: Authenticator,
    authorizer: Authorizer,
) -> Json:
    """Handle a TokenReview, SelfSubjectReview or one of the access reviews.

    *namespace* is that of the request.

    Raises:
        StatusError: 400 or 422, the review is incomplete.
    """
    given = obj.get("spec")
    spec: Json = given if isinstance(given, dict) else {}
    if resource.kind == "TokenReview":
        status = _review_token(spec, authenticator)
    elif resource.kind == "SelfSubjectReview":
        status = {"userInfo": user.to_user_info()}
        obj["metadata"]["creationTimestamp"] = now()
    elif resource.kind == "SelfSubjectRulesReview":
        status = _rules(spec, user, authorizer)
        obj["spec"] = {}
    else:
        errors = _check_metadata(obj["metadata"])
        errors += _check_access(resource.kind, spec, namespace)
        if errors:
            raise invalid(Resource(resource.group, resource.version, "", ""), "", errors)
        subject = user if resource.kind == "SelfSubjectAccessReview" else _reviewed_user(spec)
        decision = authorizer.authorize(subject, _reviewed_attributes(spec))
        status = {"allowed": decision.allowed}
        if decision.reason:
            status["reason"] = decision.reason
    return {**obj, "status": status}


def _reviewed_user(spec: Json) -> User:
    """Return the user of a review, who has only the groups that it names."""
    return User(
        name=spec.get("user") or "",
        uid=spec.get("uid") or "",
        groups=tuple(spec.get("groups") or ()),
    )


def _reviewed_attributes(spec: Json) -> Attributes:
    given = spec.get("nonResourceAttributes")
    if given is not None:
        return Attributes(given.get("verb") or "", path=given.get("path") or "/")
    given = spec["resourceAttributes"]
    return Attributes(
        verb=given.get("verb") or "",
        group=given.get("group") or "",
        resource=given.get("resource") or "",
        subresource=given.get("subresource") or "",
        name=given.get("name") or "",
        namespace=given.get("namespace") or "",
        node=_reviewed_node(given.get("fieldSelector") or {}),
    )


def _reviewed_node(field_selector: Json) -> str:
    """Return the node that the field selector of a review allows, if it allows only one."""
    for requirement in field_selector.get("requirements") or ():
        key, operator = requirement.get("key"), requirement.get("operator")
        values: list[Any] = requirement.get("values") or []
        if (key, operator, len(values)) == ("spec.nodeName", "In", 1):
            return str(values[0])
    return selected_node(field_selector.get("rawSelector") or "")


def _review_token(spec: Json, authenticator: Authenticator) -> Json:
    token = str(spec.get("token") or "")
    if not token:
        raise bad_request("token is required for TokenReview in authentication")
    found = authenticator.review_token(token, spec.get("audiences") or [AUDIENCE])
    if found is None:
        return {"user": {}, "error": "invalid bearer token"}
    user, audiences = found
    return {"authenticated": True, "user": user.to_user_info(), "audiences": audiences}


def _rules(spec: Json, user: User, authorizer: Authorizer) -> Json:
    if not spec.get("namespace"):
        raise bad_request("no namespace on request")
    rules = authorizer.rules_of(user, spec["namespace"])
    is_node = node_of(user) is not None
    return {
        "resourceRules": [
            rule._replace(non_resource_urls=()).to_json() for rule in rules if rule.resources
        ],
        "nonResourceRules": [
            PolicyRule(rule.verbs, non_resource_urls=rule.non_resource_urls).to_json()
            for rule in rules
            if rule.non_resource_urls
        ],
        "incomplete": is_node,
        **({"evaluationError": _NODE_RULES} if is_node else {}),
    }


def _check_metadata(metadata: Json) -> list[FieldError]:
    given = {key: each for key, each in metadata.items() if each and key not in _KEPT_METADATA}
    return [invalid_field("metadata", given, "must be empty")] if given else []


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
    for key in ("fieldSelector", "labelSelector"):
        errors += _check_selector((attributes or {}).get(key), f"spec.resourceAttributes.{key}")
    if kind == "LocalSubjectAccessReview":
        errors += _check_local(attributes, namespace)
        if other is not None:
            text = "disallowed on this kind of request"
            errors.append(invalid_field("spec.nonResourceAttributes", other, text))
    return errors


def _check_selector(selector: Json | None, path: str) -> list[FieldError]:
    if selector is None:
        return []
    raw, requirements = selector.get("rawSelector"), selector.get("requirements")
    if raw and requirements:
        text = "may not specified at the same time as requirements"
        return [invalid_field(f"{path}.rawSelector", raw, text)]
    if not raw and not requirements:
        text = f"when {path} is specified, requirements or rawSelector is required"
        return [required(f"{path}.requirements", text)]
    return []


def _check_local(attributes: Any, namespace: str) -> list[FieldError]:
    given = attributes.get("namespace", "") if isinstance(attributes, dict) else namespace
    if given == namespace:
        return []
    text = "must match metadata.namespace"
    return [invalid_field("spec.resourceAttributes.namespace", given, text)]
