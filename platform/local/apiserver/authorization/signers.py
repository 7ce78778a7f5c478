"""Who may approve and sign certificate requests: rights to the names of their signers."""

from typing import Any

from ....model.node_identity import API_CLIENT_SIGNER, CSRS
from ..builtin.certificate_requests import names_masters
from ..errors.status import forbidden
from ..http.auth import MASTERS_GROUP, User
from .authorizer import Authorizer
from .rules import Attributes

Json = dict[str, Any]

_STATUS_OF_SIGNERS = ("certificate", "conditions")


def check_signer(
    authorizer: Authorizer, user: User, subresource: str, *, obj: Json, old: Json
) -> None:
    """Check that *user* may approve or deny the requests of a signer, or write its certificate.

    Raises:
        StatusError: 403.
    """
    if subresource == "approval":
        verb = "approve"
    elif subresource == "status" and _signed_fields(obj) != _signed_fields(old):
        verb = "sign"
    else:
        return
    signer = (old.get("spec") or {}).get("signerName", "")
    every = signer.partition("/")[0] + "/*"
    if not any(
        authorizer.authorize(user, Attributes(verb, CSRS.group, "signers", "", name)).allowed
        for name in (signer, every)
    ):
        why = f'user not permitted to {verb} requests with signerName "{signer}"'
        raise forbidden(CSRS, obj["metadata"]["name"], why)


def check_subject(request: Json, name: str) -> None:
    """Reject a request for a client's certificate that would permit everything.

    Raises:
        StatusError: 403.
    """
    signer = (request.get("spec") or {}).get("signerName")
    if signer == API_CLIENT_SIGNER and names_masters(request):
        why = f"use of {API_CLIENT_SIGNER} signer with {MASTERS_GROUP} group is not allowed"
        raise forbidden(CSRS, name, why)


def _signed_fields(request: Json) -> list[Any]:
    status = request.get("status") or {}
    return [status.get(name) for name in _STATUS_OF_SIGNERS]
