"""The user of an application that runs in the process of this user, with this user's client."""

import msgspec

from ...kube.client.client import Client
from ...kube.errors import ApiError, NotFoundError
from ...machinery.clock import Clock
from ...model.names import Resource
from ..problems import ProblemError
from .audit import AuditRecord
from .authentication import Callers, SecuritySettings
from .caller import AuthenticatedCaller
from .client_certificates import ClientCertificate
from .reviewer import AccessAttributes, AccessReviewer, UserInfo, attributes_of

SELFSUBJECTACCESSREVIEWS = Resource(
    "authorization.k8s.io",
    "v1",
    "selfsubjectaccessreviews",
    "SelfSubjectAccessReview",
    namespaced=False,
)
SELFSUBJECTREVIEWS = Resource(
    "authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview", namespaced=False
)


class _Subject(msgspec.Struct, frozen=True, rename="camel"):
    user_info: UserInfo = UserInfo()


class _SubjectReview(msgspec.Struct, frozen=True):
    status: _Subject = _Subject()


class _Access(msgspec.Struct, frozen=True):
    allowed: bool = False


class _AccessReview(msgspec.Struct, frozen=True):
    status: _Access = _Access()


async def find_own_user(client: Client) -> UserInfo:
    """Return the user of *client*; without a name if the server is too old to report it.

    Raises:
        ApiError, ConnectionLostError: the server cannot be asked.
    """
    body = {"apiVersion": SELFSUBJECTREVIEWS.api_version, "kind": SELFSUBJECTREVIEWS.kind}
    try:
        review = await client.create(SELFSUBJECTREVIEWS, body, view=_SubjectReview)
    except NotFoundError:
        return UserInfo()
    return review.status.user_info


class OwnRightsReviewer(AccessReviewer):
    """Asks the API server what the user of the client may do."""

    def __init__(self, client: Client, *, clock: Clock) -> None:
        super().__init__(client, clock=clock)
        self._own_client = client
        self._known: dict[AccessAttributes, bool] = {}

    async def authorize(self, user: UserInfo, attributes: AccessAttributes) -> None:
        """Check that the user may do what *attributes* describe.

        Raises:
            ProblemError: 403 if not; 502 if that cannot be reviewed.
        """
        allowed = self._known.get(attributes)
        if allowed is None:
            body = {
                "apiVersion": SELFSUBJECTACCESSREVIEWS.api_version,
                "kind": SELFSUBJECTACCESSREVIEWS.kind,
                "spec": {"resourceAttributes": attributes_of(attributes)},
            }
            try:
                review = await self._own_client.create(
                    SELFSUBJECTACCESSREVIEWS, body, view=_AccessReview
                )
            except ApiError as error:
                raise ProblemError(502, f"cannot review your rights: {error}") from error
            allowed = self._known[attributes] = review.status.allowed
        if not allowed:
            raise ProblemError(403, f"user {user.username!r} cannot {attributes.describe()}")


class OwnCaller(Callers):
    """Takes each request for one of the user of the client: no other process can send any."""

    def __init__(self, client: Client, reviewer: AccessReviewer, user: UserInfo, clock: Clock):
        super().__init__(client, reviewer, SecuritySettings(), clock=clock)
        self._caller = AuthenticatedCaller(user=user, client=client)

    async def authenticate(
        self,
        authorization: str | None,
        *,
        certificate: ClientCertificate | None,
        source: str,
        record: AuditRecord | None = None,
    ) -> AuthenticatedCaller:
        """Return the user of the client."""
        del authorization, certificate, source
        if record is not None:
            record.user = self._caller.user.username
        return self._caller
