"""Checked expressions as the library serializes them: ``cel.expr.CheckedExpr`` in protobuf."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

Fields = dict[int, list["int | bytes"]]
"""The fields of a message by number; of each the values in their order."""

_PRIMITIVES = {1: "bool", 2: "int", 3: "uint", 4: "double", 5: "string", 6: "bytes"}
_WELL_KNOWN = {1: "any", 2: "timestamp", 3: "duration"}
_STRING, _BYTES, _INT = 6, 7, 3


class Type(NamedTuple):
    """Type of an expression."""

    kind: str = "dyn"
    """``list``, ``map``, ``message``, ``abstract``, or the name of a simple type."""

    parameters: tuple["Type", ...] = ()
    name: str = ""
    """Name of a message or an abstract type; empty for other kinds."""


class Expression(NamedTuple):
    """A node of the syntax tree; attributes that its kind does not have keep their defaults."""

    id: int
    kind: str
    """``literal``, ``ident``, ``select``, ``call``, ``list``, ``map``, ``message`` or ``loop``."""

    name: str = ""
    """Name of a variable, field or function."""

    operands: Sequence["Expression"] = ()
    """The operand of a selection, the arguments of a call, the items of a list, or the keys and
    values of a map. A loop has its range, initial value, condition, step and result."""

    target: "Expression | None" = None
    """The object of a call of a member function."""

    is_test: bool = False
    """Whether a selection is the argument of ``has()``."""

    variables: tuple[str, str] = ("", "")
    """Names of the variables of a loop: that of the items, and the accumulator."""

    value: "int | str | None" = None
    """Value of a literal number or text."""

    size: int = 1
    """Number of characters or bytes of a literal."""


class Checked(NamedTuple):
    """A checked expression."""

    root: Expression
    types: Mapping[int, Type]
    overloads: Mapping[int, Sequence[str]]
    """Ids of the overloads of each call."""


def decode(data: bytes) -> Checked:
    """Decode a serialized expression, which the library wraps into an ``Any``."""
    fields = _fields(_bytes(_fields(data), 2))
    types, overloads = {}, {}
    for each in fields.get(3, ()):
        entry = _fields(each)
        types[_int(entry, 1)] = _type(_bytes(entry, 2))
    for each in fields.get(2, ()):
        entry = _fields(each)
        found = _fields(_bytes(entry, 2)).get(3, ())
        overloads[_int(entry, 1)] = [text.decode() for text in found if isinstance(text, bytes)]
    return Checked(_expression(_bytes(fields, 4)), types, overloads)


def _fields(data: "bytes | int") -> Fields:
    found: Fields = {}
    for number, value in _pairs(data if isinstance(data, bytes) else b""):
        found.setdefault(number, []).append(value)
    return found


def _pairs(data: bytes) -> Iterator[tuple[int, "int | bytes"]]:
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        wire_type = tag & 7
        if wire_type == 0:
            value, position = _varint(data, position)
            yield tag >> 3, value
            continue
        length = {1: 8, 5: 4}.get(wire_type, 0)
        if wire_type == 2:
            length, position = _varint(data, position)
        yield tag >> 3, data[position : position + length]
        position += length


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7


def _bytes(fields: Fields, number: int) -> bytes:
    found = fields.get(number, (b"",))[-1]
    return found if isinstance(found, bytes) else b""


def _int(fields: Fields, number: int) -> int:
    found = fields.get(number, (0,))[-1]
    return found if isinstance(found, int) else 0


def _text(fields: Fields, number: int) -> str:
    return _bytes(fields, number).decode()


def _type(data: bytes) -> Type:
    fields = _fields(data)
    if 3 in fields or 4 in fields:
        return Type(_PRIMITIVES.get(_int(fields, 3) or _int(fields, 4), "dyn"))
    if 5 in fields:
        return Type(_WELL_KNOWN.get(_int(fields, 5), "dyn"))
    if 6 in fields:
        return Type("list", (_type(_bytes(_fields(_bytes(fields, 6)), 1)),))
    if 7 in fields:
        entry = _fields(_bytes(fields, 7))
        return Type("map", (_type(_bytes(entry, 1)), _type(_bytes(entry, 2))))
    if 9 in fields:
        return Type("message", name=_text(fields, 9))
    if 14 in fields:
        abstract = _fields(_bytes(fields, 14))
        parameters = tuple(_type(each) for each in abstract.get(2, ()) if isinstance(each, bytes))
        return Type("abstract", parameters, _text(abstract, 1))
    return Type("null") if 2 in fields else Type()


def _expressions(fields: Fields, number: int) -> list[Expression]:
    return [_expression(each) for each in fields.get(number, ()) if isinstance(each, bytes)]


def _expression(data: bytes) -> Expression:
    fields = _fields(data)
    id_ = _int(fields, 2)
    if 4 in fields:
        return Expression(id_, "ident", _text(_fields(_bytes(fields, 4)), 1))
    if 5 in fields:
        found = _fields(_bytes(fields, 5))
        return Expression(
            id_, "select", _text(found, 2), _expressions(found, 1), is_test=bool(_int(found, 3))
        )
    if 6 in fields:
        found = _fields(_bytes(fields, 6))
        target = _expressions(found, 1)
        return Expression(
            id_, "call", _text(found, 2), _expressions(found, 3), target[0] if target else None
        )
    if 7 in fields:
        return Expression(id_, "list", operands=_expressions(_fields(_bytes(fields, 7)), 1))
    if 8 in fields:
        return _created(id_, _fields(_bytes(fields, 8)))
    if 9 in fields:
        found = _fields(_bytes(fields, 9))
        operands = [_expression(_bytes(found, number)) for number in (2, 4, 5, 6, 7)]
        variables = _text(found, 1), _text(found, 3)
        return Expression(id_, "loop", operands=operands, variables=variables)
    return _literal(id_, _fields(_bytes(fields, 3)))


def _created(id_: int, fields: Fields) -> Expression:
    """Return a map, whose operands are keys and values, or a message, whose operands are values."""
    operands = []
    for each in fields.get(2, ()):
        entry = _fields(each)
        operands += [*_expressions(entry, 3), *_expressions(entry, 4)]
    name = _text(fields, 1)
    return Expression(id_, "message" if name else "map", name, operands)


def _literal(id_: int, fields: Fields) -> Expression:
    if _STRING in fields:
        text = _text(fields, _STRING)
        return Expression(id_, "literal", value=text, size=len(text))
    if _BYTES in fields:
        return Expression(id_, "literal", size=len(_bytes(fields, _BYTES)))
    value = _int(fields, _INT) if _INT in fields else None
    if value is not None and value >= 1 << 63:
        value -= 1 << 64
    if 2 in fields:
        value = _int(fields, 2)
    return Expression(id_, "literal", value=value)
