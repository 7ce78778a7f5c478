"""The subresource ``token`` of service accounts: TokenRequests."""

import msgspec

from ....model import names, times
from ....model.names import Resource
from ..current_time import now
from ..errors.fields import FieldError
from ..errors.fields import invalid as invalid_field
from ..errors.status import bad_request, conflict, invalid, not_found
from ..http.auth import AUDIENCE
from ..http.bodies import decode_body, get_object
from ..http.requests import Json, Request, Response
from ..kinds.groups import AUTHENTICATION
from ..service_accounts.tokens import BoundClaims, Lookup, ServiceAccountTokens, bound_claims
from ..storage.stored_objects import StoredObject
from .write_requests import WriteRequest
from .writes import Writer

_KIND = Resource(AUTHENTICATION, "v1", "tokenrequests", "TokenRequest")
_MIN_SECONDS, _DEFAULT_SECONDS, _MAX_SECONDS = 600, 3600, 2**32
_BINDABLE = {
    "Pod": names.PODS,
    "Secret": names.SECRETS,
    "Node": names.NODES,
}
"""Kinds of the objects that a token can be bound to, all of the core group."""


class _Reference(msgspec.Struct, rename="camel", omit_defaults=True):
    """What a token is bound to."""

    kind: str = ""
    api_version: str = ""
    name: str = ""
    uid: str = ""


class _Spec(msgspec.Struct, rename="camel"):
    """The spec of a TokenRequest."""

    audiences: list[str] | None = None
    expiration_seconds: int | None = None
    bound_object_ref: _Reference | None = None


class TokenRequests:
    """Handles TokenRequests."""

    def __init__(self, writer: Writer, tokens: ServiceAccountTokens, lookup: Lookup) -> None:
        self._writer = writer
        self._tokens = tokens
        self._lookup = lookup

    async def create(self, write_request: WriteRequest, request: Request) -> Response:
        """Issue a token of a service account.

        Raises:
            StatusError: 400, 404, 409, 422.
        """
        body = decode_body(request)
        _check_type(body)
        path = write_request.object_path
        metadata = get_object(body, "metadata")
        if metadata.get("namespace") not in (None, "", path.namespace):
            text = "the namespace of the provided object does not match the namespace sent on the"
            raise bad_request(f"{text} request")
        if metadata.get("name") not in (None, "", path.name):
            text = "must match the service account name if specified"
            raise invalid(
                _KIND, path.name, [invalid_field("metadata.name", metadata["name"], text)]
            )
        given_spec = get_object(body, "spec")
        self._writer.admission.node_restriction.check_token(
            write_request.user, path.namespace, path.name, given_spec
        )
        spec = _decode(given_spec)
        audiences = spec.audiences or [AUDIENCE]
        seconds = _DEFAULT_SECONDS if spec.expiration_seconds is None else spec.expiration_seconds
        if errors := _check(seconds):
            raise invalid(_KIND, "", errors)
        _, account = self._writer.get_latest(write_request)
        bound = self._bound(account, spec.bound_object_ref)
        issued = self._tokens.issue(account, audiences=audiences, seconds=seconds, bound=bound)
        response = {
            "kind": _KIND.kind,
            "apiVersion": _KIND.api_version,
            "metadata": {
                "name": path.name,
                "namespace": path.namespace,
                "uid": account.uid,
                "creationTimestamp": now(),
            },
            "spec": _Spec(audiences, seconds, spec.bound_object_ref),
            "status": {
                "token": issued.token,
                "expirationTimestamp": times.format(issued.expires),
            },
        }
        return Response(status=201, body=msgspec.json.encode(response) + b"\n")

    def _bound(self, account: StoredObject, reference: _Reference | None) -> BoundClaims:
        """Return the claims of a token that is bound to the object of *reference*, if any."""
        if reference is None:
            return bound_claims(account)
        version, kind = reference.api_version, reference.kind
        group, _, short = version.rpartition("/")
        resource = _BINDABLE.get(kind) if not group else None
        if resource is None:
            raise bad_request(f"cannot bind token to object of type {group}/{short}, Kind={kind}")
        namespace = account.namespace if resource.namespaced else ""
        name, uid = reference.name, reference.uid
        found = self._lookup(resource, namespace, name)
        if found is None:
            raise not_found(resource, name)
        spec: Json = found.shared().get("spec") or {}
        if kind == "Pod" and spec.get("serviceAccountName") != account.name:
            text = (
                f'cannot bind token for serviceaccount "{account.name}" to pod running with '
                "different serviceaccount name."
            )
            raise bad_request(text)
        if uid not in ("", found.uid):
            text = (
                f"the UID in the bound object reference ({uid}) does not match the UID in record. "
                "The object might have been deleted and then recreated"
            )
            raise conflict(resource._replace(plural=kind), name, text)
        if kind == "Pod":
            node = self._lookup(names.NODES, "", spec.get("nodeName") or "")
            return bound_claims(account, pod=found, node=node)
        if kind == "Secret":
            return bound_claims(account, secret=found)
        return bound_claims(account, node=found)


def _check_type(body: Json) -> None:
    given = body.get("apiVersion") or _KIND.api_version, body.get("kind") or _KIND.kind
    if given != (_KIND.api_version, _KIND.kind):
        raise bad_request(f"{given[1]} of {given[0]} cannot be handled as a TokenRequest")


def _decode(spec: Json) -> _Spec:
    try:
        return msgspec.convert(spec, _Spec)
    except msgspec.ValidationError as error:
        raise bad_request(f"spec of a TokenRequest: {error}") from None


def _check(seconds: int) -> list[FieldError]:
    field = "spec.expirationSeconds"
    if seconds < _MIN_SECONDS:
        return [invalid_field(field, seconds, "may not specify a duration less than 10 minutes")]
    if seconds > _MAX_SECONDS:
        text = "may not specify a duration larger than 2^32 seconds"
        return [invalid_field(field, seconds, text)]
    return []
