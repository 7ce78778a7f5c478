"""Cursors of sorted lists: the position of the last item of a page.

A position is a sort key, not a number, so that items which are added or removed elsewhere
move nothing: an item that exists throughout, with the same sort key, is on exactly one page.
"""

import base64
import binascii
from collections.abc import Sequence

import msgspec

from ..problems import invalid_fields

Position = tuple[str, ...]
"""The sort key of an item, unique in the list."""

MAX_CURSOR = 4096
"""Maximum length of a cursor."""

MAX_KEY = 253
"""Characters of a value that count for the order; all names are shorter."""


class _Cursor(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    query: str
    position: Position


_DECODER = msgspec.json.Decoder(_Cursor)


def encode_cursor(query: str, position: Position) -> str:
    """Return the cursor of the page after *position* in the list that *query* identifies."""
    return base64.urlsafe_b64encode(msgspec.json.encode(_Cursor(query, position))).decode()


def decode_cursor(text: str, query: str, *, length: int) -> Position:
    """Return the position of a cursor, which has *length* strings.

    Raises:
        ProblemError: 422 if it is no cursor, or one of another query.
    """
    try:
        cursor = _DECODER.decode(base64.b64decode(text, altchars=b"-_", validate=True))
    except (binascii.Error, msgspec.MsgspecError, UnicodeError, ValueError):
        raise invalid_fields(("cursor", "not a cursor of this API")) from None
    if cursor.query != query or len(cursor.position) != length:
        raise invalid_fields(("cursor", "the cursor belongs to another query: filters, sort"))
    return cursor.position


def page_body(items: Sequence[bytes], *, next_cursor: str | None, total: int) -> bytes:
    """Return the body of a page of encoded *items*."""
    cursor = msgspec.json.encode(next_cursor)
    return b'{"items":[%b],"next_cursor":%b,"total":%d}' % (b",".join(items), cursor, total)
