"""Identities of single requests: the bearer token of a caller, or impersonation of a user.

An :class:`Identity` is encoded when it is created, and never shown: neither by ``repr`` nor in the
text of an error.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from urllib.parse import quote

_TOKEN = re.compile(r"[\x21-\x7e]+")
"""Servers end a token at white space, and would read a part of one that contains it."""

_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f]")

_EXTRA_KEY_SAFE = "!#$&'*+.^`|"
"""Characters of header names that ``quote`` would encode; ``%`` begins an encoded one."""


class IdentityError(ValueError):
    """Headers cannot express an identity exactly; the text does not contain its secrets."""


class Identity:
    """Headers by which a request is authenticated instead of, or on top of, the client's own."""

    __slots__ = ("header_lines", "replaces_credentials")

    def __init__(self, header_lines: bytes, *, replaces_credentials: bool) -> None:
        """Use :meth:`bearer` or :meth:`impersonation`."""
        self.header_lines = header_lines
        self.replaces_credentials = replaces_credentials
        """Whether no credentials of the client are sent: no header and no client certificate."""

    def __repr__(self) -> str:
        """Hide the headers."""
        return "Identity(…)"

    @classmethod
    def bearer(cls, token: str) -> "Identity":
        """Authenticate by *token* alone.

        Raises:
            IdentityError: it contains white space, or characters other than ASCII.
        """
        if not _TOKEN.fullmatch(token):
            raise IdentityError("a bearer token contains invalid characters")
        return cls(f"Authorization: Bearer {token}\r\n".encode(), replaces_credentials=True)

    @classmethod
    def impersonation(
        cls,
        user: str,
        *,
        uid: str = "",
        groups: Iterable[str] = (),
        extra: Mapping[str, Sequence[str]] | None = None,
    ) -> "Identity":
        """Act as a user, authenticated by the client's credentials, which need the right to.

        Raises:
            IdentityError: the name is empty, or an attribute begins or ends with a space or
                contains control characters: the server would read another one.
        """
        lines = _impersonation_lines(user, uid=uid, groups=groups, extra=extra or {})
        return cls(b"".join(lines), replaces_credentials=False)


def _impersonation_lines(
    user: str, *, uid: str, groups: Iterable[str], extra: Mapping[str, Sequence[str]]
) -> Iterator[bytes]:
    if not user:
        raise IdentityError("cannot impersonate a user without a name")
    yield _line("Impersonate-User", "user name", user)
    if uid:
        yield _line("Impersonate-Uid", "uid", uid)
    for group in groups:
        if not group:
            raise IdentityError("cannot impersonate a group without a name")
        yield _line("Impersonate-Group", "group", group)
    for key, values in extra.items():
        if not key or key != key.lower():
            # Header names are case-insensitive: the server would read the key in lowercase.
            raise IdentityError(f"cannot impersonate extra key {key!r}: it is not in lowercase")
        name = f"Impersonate-Extra-{quote(key, safe=_EXTRA_KEY_SAFE)}"
        for value in values:
            yield _line(name, f"extra value of {key!r}", value)


def _line(header: str, what: str, value: str) -> bytes:
    """Encode a header line; names of users may contain any character that a line may."""
    if _FORBIDDEN.search(value) or value != value.strip(" "):
        raise IdentityError(f"cannot impersonate {what} {value!r}: a header cannot contain it")
    try:
        return f"{header}: {value}\r\n".encode()
    except UnicodeEncodeError as error:
        raise IdentityError(f"cannot impersonate {what} {value!r}: not Unicode") from error
