"""Tokens of service accounts: JWTs, valid as long as their account and the object that they are
bound to exist.

Nothing of a token is stored. It names the account and the bound object by name and uid, and each
request with it looks both up.
"""

import base64
import hashlib
import hmac
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple
from uuid import uuid4

import jwt
import msgspec
from cryptography.hazmat.primitives import serialization
from jwt.types import Options

from ....machinery.x509 import parse_key
from ....model import names, times
from ....model.names import Resource
from ..http.auth import AUDIENCE, AUTHENTICATED_GROUP, User
from ..storage.stored_objects import StoredObject

ISSUER = AUDIENCE
USER_PREFIX = "system:serviceaccount:"
GROUP = "system:serviceaccounts"

EXTENDED_SECONDS = 365 * 24 * 3600
"""Lifetime of the tokens that pods get by default: their programs may read the file only once, as
they are used to. The file itself is renewed much earlier."""

POD_SECONDS = 3607
"""Lifetime that a pod's own volume asks for: the number is how such a request is recognized."""

TOKEN_KEY = "token"  # noqa: S105 - a key
STORED_SECONDS = 2**32
"""Lifetime of tokens in Secrets, which end with their Secret."""

ALGORITHM = "ES256"
_CACHE_SIZE = 4_096
"""Tokens whose signature is known to be valid."""

_DELETION_LEEWAY = 60.0
"""Seconds after its deletion is due for which a pod's token stays valid."""

_EXTRA = "authentication.kubernetes.io/"

_COMPARED_AT_EACH_USE: Options = {
    "verify_aud": False,
    "verify_exp": False,
    "verify_nbf": False,
    "verify_iat": False,
}

Lookup = Callable[[Resource, str, str], StoredObject | None]
"""Returns an object by resource, namespace and name."""


class JsonWebKey(msgspec.Struct, frozen=True):
    """A public key on the curve P-256 (RFC 7517)."""

    use: str
    kty: str
    kid: str
    crv: str
    alg: str
    x: str
    y: str


class ObjectRef(msgspec.Struct, frozen=True):
    """An object by name and uid."""

    name: str
    uid: str


class BoundClaims(msgspec.Struct, frozen=True, omit_defaults=True):
    """The claim ``kubernetes.io`` of a token."""

    namespace: str
    serviceaccount: ObjectRef
    pod: ObjectRef | None = None
    secret: ObjectRef | None = None
    stored: bool = False
    """Whether the Secret contains the token, which is valid as long as it does."""
    node: ObjectRef | None = None
    warnafter: int | None = None
    """When the token should have been replaced, if it is valid for longer; Unix time."""


class Claims(msgspec.Struct, frozen=True):
    """The claims of a token; times are Unix times."""

    aud: tuple[str, ...]
    exp: int
    iat: int
    iss: str
    jti: str
    bound: BoundClaims = msgspec.field(name="kubernetes.io")
    nbf: int
    sub: str


class _VerifiedToken(NamedTuple):
    """The claims and the user of a token with a valid signature."""

    claims: Claims
    user: User


class IssuedToken(NamedTuple):
    """A token, and when the client is to replace it at the latest."""

    token: str
    expires: datetime


class ServiceAccountTokens:
    """Issues tokens, and returns the users of those that it has issued."""

    def __init__(self, key_pem: bytes, lookup: Lookup, clock: Callable[[], float]) -> None:
        """Sign with the private key *key_pem*; *clock* returns the Unix time."""
        self._key = parse_key(key_pem)
        self._public_key = self._key.public_key()
        der = self._public_key.public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        self._key_id = hashlib.sha256(der).hexdigest()[:32]
        self._lookup = lookup
        self._clock = clock
        self._verified: OrderedDict[str, _VerifiedToken] = OrderedDict()
        """Tokens with a valid signature, the one that was used last at the end."""

    @property
    def public_key(self) -> JsonWebKey:
        """The key that verifies the tokens."""
        numbers = self._public_key.public_numbers()
        return JsonWebKey(
            use="sig",
            kty="EC",
            kid=self._key_id,
            crv="P-256",
            alg=ALGORITHM,
            x=_coordinate(numbers.x),
            y=_coordinate(numbers.y),
        )

    def issue(
        self, account: StoredObject, *, audiences: Sequence[str], seconds: int, bound: BoundClaims
    ) -> IssuedToken:
        """Return a token of *account* that is valid for *seconds*, as long as what it is bound to
        exists."""
        now = int(self._clock())
        lifetime = seconds
        if seconds == POD_SECONDS and bound.pod and tuple(audiences) == (AUDIENCE,):
            lifetime = EXTENDED_SECONDS
            bound = msgspec.structs.replace(bound, warnafter=now + seconds)
        claims = Claims(
            aud=tuple(audiences),
            exp=now + lifetime,
            iat=now,
            iss=ISSUER,
            jti=str(uuid4()),
            bound=bound,
            nbf=now,
            sub=f"{USER_PREFIX}{account.namespace}:{account.name}",
        )
        token = jwt.encode(
            msgspec.to_builtins(claims), self._key, ALGORITHM, headers={"kid": self._key_id}
        )
        return IssuedToken(token, datetime.fromtimestamp(now + seconds, UTC))

    def authenticate(self, token: str, audiences: Collection[str]) -> tuple[User, list[str]] | None:
        """Return the user of *token* and those of *audiences* that it is for; ``None`` if it is
        not valid."""
        verified = self._verify(token)
        if verified is None:
            return None
        claims = verified.claims
        if not claims.nbf <= self._clock() < claims.exp:
            return None
        accepted = [each for each in audiences if each in claims.aud]
        if not accepted or not self._exists(claims.bound):
            return None
        if claims.bound.stored and not self._is_stored(token, claims.bound):
            return None
        return verified.user, accepted

    def _verify(self, token: str) -> _VerifiedToken | None:
        """Return the claims and the user of *token*, if its signature is valid."""
        known = self._verified.get(token)
        if known is not None:
            self._verified.move_to_end(token)
            return known
        try:
            decoded = jwt.decode(
                token,
                self._public_key,
                algorithms=[ALGORITHM],
                issuer=ISSUER,
                options=_COMPARED_AT_EACH_USE,
            )
            claims = msgspec.convert(decoded, Claims)
        except (jwt.InvalidTokenError, msgspec.ValidationError, ValueError):
            return None
        verified = self._verified[token] = _VerifiedToken(claims, _user_of(claims))
        if len(self._verified) > _CACHE_SIZE:
            self._verified.popitem(last=False)
        return verified

    def _exists(self, bound: BoundClaims) -> bool:
        """Whether the account and the bound object exist, and were not created again."""
        if not self._is(names.SERVICEACCOUNTS, bound.namespace, bound.serviceaccount):
            return False
        if bound.pod is not None:
            return self._is(names.PODS, bound.namespace, bound.pod)
        if bound.secret is not None:
            return self._is(names.SECRETS, bound.namespace, bound.secret)
        return bound.node is None or self._is(names.NODES, "", bound.node)

    def _is_stored(self, token: str, bound: BoundClaims) -> bool:
        """Whether the Secret that a token is bound to contains it."""
        found = bound.secret and self._lookup(names.SECRETS, bound.namespace, bound.secret.name)
        data = (found.shared().get("data") or {}) if found else {}
        stored = base64.b64decode(data.get(TOKEN_KEY) or "")
        return hmac.compare_digest(stored, token.encode(errors="surrogateescape"))

    def _is(self, resource: Resource, namespace: str, ref: ObjectRef) -> bool:
        found = self._lookup(resource, namespace, ref.name)
        if found is None or found.uid != ref.uid:
            return False
        if not found.deleting:
            return True
        # It may take longer than its grace period; its token does not.
        deleted = times.parse(found.shared()["metadata"]["deletionTimestamp"])
        return self._clock() < deleted.timestamp() + _DELETION_LEEWAY


def _coordinate(number: int) -> str:
    return base64.urlsafe_b64encode(number.to_bytes(32)).decode().rstrip("=")


def _extra_of(bound: BoundClaims, token_id: str) -> Mapping[str, tuple[str, ...]]:
    """Return the extra attributes of a user that has authenticated by a token."""
    extra = {f"{_EXTRA}credential-id": (f"JTI={token_id}",)}
    for kind, ref in (("node", bound.node), ("pod", bound.pod)):
        if ref is not None:
            extra[f"{_EXTRA}{kind}-name"] = (ref.name,)
            extra[f"{_EXTRA}{kind}-uid"] = (ref.uid,)
    return extra


def _user_of(claims: Claims) -> User:
    bound = claims.bound
    return User(
        name=f"{USER_PREFIX}{bound.namespace}:{bound.serviceaccount.name}",
        uid=bound.serviceaccount.uid,
        groups=(GROUP, f"{GROUP}:{bound.namespace}", AUTHENTICATED_GROUP),
        extra=_extra_of(bound, claims.jti),
    )


def bound_claims(
    account: StoredObject,
    *,
    pod: StoredObject | None = None,
    secret: StoredObject | None = None,
    node: StoredObject | None = None,
    stored: bool = False,
) -> BoundClaims:
    """Return the claims of a token of *account* that is bound to one of the other objects.

    *stored*: to the *secret* with the token in it.
    """

    def ref(entry: StoredObject | None) -> ObjectRef | None:
        return None if entry is None else ObjectRef(entry.name, entry.uid)

    return BoundClaims(
        account.namespace,
        ObjectRef(account.name, account.uid),
        pod=ref(pod),
        secret=ref(secret),
        stored=stored,
        node=ref(node),
    )
