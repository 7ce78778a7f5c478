"""Label selectors and field selectors: which objects are meant.

A label selector comes as text (``tier in (a,b),!canary``) or as the ``matchLabels`` and
``matchExpressions`` of an object; both become a :class:`Selector`, and ``str(selector)`` is the
text for a query. Field selectors are only parsed here: which fields a kind offers is its own
matter.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

from .meta import LabelRequirement, LabelSelector
from .validation import label_value_error, qualified_name_error

_TOKEN = re.compile(r"\s*(==|!=|[=!(),<>]|[^\s=!(),<>]+|\Z)")
_SYMBOLS = frozenset(("=", "==", "!=", "!", "(", ")", ",", "<", ">"))
_UNESCAPED_TERM = re.compile(r"(?:[^,\\]|\\.?)+", re.DOTALL)
_FIELD_TERM = re.compile(r"([^=!]*)(!=|==|=)((?:[^=,\\]|\\[,=\\])*)")
_INTEGER = re.compile(r"[+-]?[0-9]+", re.ASCII)


class SelectorError(ValueError):
    """The selector cannot be understood; the message is what an API client is told."""


class Operator(StrEnum):
    """How a requirement compares a label with its values."""

    IN = "in"
    NOT_IN = "notin"
    EXISTS = "exists"
    DOES_NOT_EXIST = "!"
    GREATER = ">"
    LESS = "<"


@dataclass(frozen=True, slots=True)
class Requirement:
    """One condition on one label."""

    key: str
    operator: Operator
    values: frozenset[str] = frozenset()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether *labels* meet the condition; NOT_IN is also met where the label is missing."""
        value = labels.get(self.key)
        match self.operator:
            case Operator.IN:
                return value in self.values
            case Operator.NOT_IN:
                return value not in self.values
            case Operator.EXISTS:
                return value is not None
            case Operator.DOES_NOT_EXIST:
                return value is None
        if value is None or not _INTEGER.fullmatch(value):
            return False
        (limit,) = self.values
        difference = int(value) - int(limit)
        return difference > 0 if self.operator is Operator.GREATER else difference < 0

    def __str__(self) -> str:
        """The condition in selector syntax."""
        match self.operator:
            case Operator.EXISTS:
                return self.key
            case Operator.DOES_NOT_EXIST:
                return f"!{self.key}"
        values = ",".join(sorted(self.values))
        if self.operator in (Operator.GREATER, Operator.LESS):
            return f"{self.key}{self.operator}{values}"
        if len(self.values) == 1:
            return f"{self.key}{'=' if self.operator is Operator.IN else '!='}{values}"
        return f"{self.key} {self.operator} ({values})"


@dataclass(frozen=True, slots=True)
class Selector:
    """Conditions that must all hold; without any it selects everything."""

    requirements: tuple[Requirement, ...] = ()

    nothing: bool = False
    """Selects nothing at all: what a selector that was never given means."""

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether an object with *labels* is meant."""
        return not self.nothing and all(each.matches(labels) for each in self.requirements)

    def __str__(self) -> str:
        """The selector as the text of a query (NOTHING cannot be asked for)."""
        return ",".join(str(each) for each in self.requirements)


NOTHING = Selector(nothing=True)


class FieldRequirement(NamedTuple):
    """One condition of a field selector; *operator* is ``=`` or ``!=``."""

    path: str
    operator: str
    value: str

    def matches(self, value: str) -> bool:
        """Whether a field with *value* (``""`` where it is missing) meets the condition."""
        return (value == self.value) == (self.operator == "=")


@lru_cache(maxsize=1024)
def parse_label_selector(text: str) -> Selector:
    """Read a label selector in the syntax of ``kubectl -l``; empty text selects everything.

    Raises:
        SelectorError: it cannot be read, or a key or value could not stand on any object.
    """
    reader = _Lexer(text)
    requirements = []
    while reader.peek():
        if reader.peek() != "!" and reader.peek() in _SYMBOLS:
            raise reader.unexpected("!, identifier, or 'end of string'")
        requirements.append(_parse_requirement(reader))
        separator = reader.advance()
        if not separator:
            break
        if separator != ",":
            raise reader.unexpected("',' or 'end of string'", found=separator)
        if not reader.peek() or (reader.peek() in _SYMBOLS and reader.peek() != "!"):
            raise reader.unexpected("identifier after ','")
    return Selector(tuple(sorted(requirements, key=lambda each: each.key)))


def from_label_selector(selector: LabelSelector | None) -> Selector:
    """The selector that an object carries; ``None`` selects nothing, an empty one everything.

    Raises:
        SelectorError: an operator is unknown, or a key, a value or their number is wrong.
    """
    if selector is None:
        return NOTHING
    equal = [
        _new_requirement(key, Operator.IN, [value]) for key, value in selector.match_labels.items()
    ]
    return Selector((*equal, *map(_from_expression, selector.match_expressions)))


def parse_field_selector(text: str) -> list[FieldRequirement]:
    """Read a field selector (``a=b,c!=d``); a backslash keeps ``,``, ``=`` and itself literal.

    Raises:
        SelectorError: a term has no operator, or its value a stray backslash or ``=``.
    """
    return [_parse_field_requirement(term) for term in _UNESCAPED_TERM.findall(text)]


class _Lexer:
    """The tokens of a label selector, one after the other; ``""`` is the end."""

    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._next = next(self._tokens)

    def peek(self) -> str:
        return self._next

    def advance(self) -> str:
        taken = self._next
        self._next = next(self._tokens, "")
        return taken

    def identifier(self) -> str:
        """The next token, which must be a word."""
        if not self._next or self._next in _SYMBOLS:
            raise self.unexpected("identifier")
        return self.advance()

    def unexpected(self, expected: str, *, found: str | None = None) -> SelectorError:
        found = self._next if found is None else found
        return SelectorError(f"unable to parse requirement: found '{found}', expected: {expected}")


def _tokens(text: str) -> Iterator[str]:
    at = 0
    while match := _TOKEN.match(text, at):
        yield match[1]
        if not match[1]:
            return
        at = match.end()


def _parse_requirement(lexer: _Lexer) -> Requirement:
    if lexer.peek() == "!":
        lexer.advance()
        return _new_requirement(lexer.identifier(), Operator.DOES_NOT_EXIST, [])
    key = lexer.identifier()
    operator = lexer.peek()
    if operator in ("", ","):
        return _new_requirement(key, Operator.EXISTS, [])
    if operator not in ("=", "==", "!=", "in", "notin", "<", ">"):
        raise lexer.unexpected("in, notin, =, ==, !=, gt, lt")
    lexer.advance()
    match operator:
        case "=" | "==":
            return _new_requirement(key, Operator.IN, [_parse_exact_value(lexer)])
        case "!=":
            return _new_requirement(key, Operator.NOT_IN, [_parse_exact_value(lexer)])
        case "in" | "notin":
            return _new_requirement(key, Operator(operator), _parse_values(lexer))
    return _new_requirement(key, Operator(operator), [lexer.identifier()])


def _parse_exact_value(lexer: _Lexer) -> str:
    """A value, which may be empty."""
    return "" if lexer.peek() in ("", ",") else lexer.identifier()


def _parse_values(lexer: _Lexer) -> list[str]:
    """Values in parentheses; nothing between two commas is the empty value."""
    if lexer.peek() != "(":
        raise lexer.unexpected("'('")
    lexer.advance()
    values = []
    while True:
        values.append("" if lexer.peek() in (",", ")") else lexer.identifier())
        sign = lexer.advance()
        if sign == ")":
            return values
        if sign != ",":
            raise lexer.unexpected("',' or ')'", found=sign)


def _from_expression(expression: LabelRequirement) -> Requirement:
    operators = {
        "In": Operator.IN,
        "NotIn": Operator.NOT_IN,
        "Exists": Operator.EXISTS,
        "DoesNotExist": Operator.DOES_NOT_EXIST,
    }
    if expression.operator not in operators:
        raise SelectorError(f'"{expression.operator}" is not a valid label selector operator')
    return _new_requirement(expression.key, operators[expression.operator], list(expression.values))


def _new_requirement(key: str, operator: Operator, values: list[str]) -> Requirement:
    """A requirement that some object could meet."""
    if problem := qualified_name_error(key):
        raise _invalid("key", key, problem)
    if operator in (Operator.IN, Operator.NOT_IN) and not values:
        raise SelectorError(f"values of '{key}': operators 'in' and 'notin' need at least one")
    if operator in (Operator.EXISTS, Operator.DOES_NOT_EXIST) and values:
        raise SelectorError(f"values of '{key}': must be empty for exists and does not exist")
    for value in values:
        if problem := label_value_error(value):
            raise _invalid(f"values of '{key}'", value, problem)
        if operator in (Operator.GREATER, Operator.LESS) and not _INTEGER.fullmatch(value):
            raise _invalid(f"values of '{key}'", value, "'>' and '<' compare whole numbers")
    return Requirement(key, operator, frozenset(values))


def _invalid(what: str, value: str, error: str) -> SelectorError:
    return SelectorError(f'unable to parse requirement: {what}: Invalid value: "{value}": {error}')


def _parse_field_requirement(term: str) -> FieldRequirement:
    match = _FIELD_TERM.fullmatch(term)
    if match is None:
        raise SelectorError(
            f"invalid field selector: '{term}' is not of the form field=value or field!=value,"
            " with a backslash before each ',', '=' and '\\' in the value"
        )
    path, operator, value = match.groups()
    literal = re.sub(r"\\(.)", r"\1", value)
    return FieldRequirement(path, "!=" if operator == "!=" else "=", literal)
