"""Discovery of the issuer of service account tokens (OpenID Connect Discovery).

Programs that get such a token verify it by these documents, without a TokenReview.
"""

import msgspec

from ..http.requests import Response
from .tokens import ALGORITHM, ISSUER, ServiceAccountTokens

CONFIGURATION = "/.well-known/openid-configuration"
KEYS = "/openid/v1/jwks"
_CACHING = ((b"cache-control", b"public, max-age=3600"),)


class IssuerDiscovery:
    """The documents about the issuer."""

    def __init__(self, tokens: ServiceAccountTokens, address: str) -> None:
        """*address*: ``host:port`` at which pods reach the server, as they verify tokens, too."""
        self._configuration = {
            "issuer": ISSUER,
            "jwks_uri": f"https://{address}{KEYS}",
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": [ALGORITHM],
        }
        self._keys = {"keys": [tokens.public_key]}

    def document(self, path: str) -> Response | None:
        """Return the document at *path*; ``None`` if there is none."""
        if path == CONFIGURATION:
            return Response(body=msgspec.json.encode(self._configuration), headers=_CACHING)
        if path == KEYS:
            body = msgspec.json.encode(self._keys)
            return Response(body=body, headers=_CACHING, content_type="application/jwk-set+json")
        return None
