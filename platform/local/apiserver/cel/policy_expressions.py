"""Expressions of policies and of match conditions: variables, composition, results.

A variable of a policy is bound in each expression that uses it, so it is evaluated only if the
expression needs it, and keeps its type.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple

from ....machinery.cel.environment import CompileError, Environment, EvaluationError, Program
from ....machinery.cel.input_limits import Inputs, Loops
from ....machinery.cel.literals import LITERAL
from ....machinery.cel.signatures import AUTHORIZER, RESOURCE_CHECK
from . import mutation_objects
from .authorizer_functions import SIGNATURES

_DYNAMIC = ("object", "oldObject", "request", "namespaceObject")
REQUEST_RESOURCE = "authorizer__requestResource"
"""``authorizer.requestResource``, whose name would be looked up as a field."""

_REQUEST_RESOURCE = re.compile(r"(?<![\w.])authorizer\s*\.\s*requestResource\b")
_USE = re.compile(r"(?<![\w.])variables\s*\.\s*(\w+)")
_PREFIX = "variables__"


class Variable(NamedTuple):
    """A variable of a policy: its expression with those that it uses itself."""

    expression: str
    uses: tuple[str, ...]


class Activation(NamedTuple):
    """The values of all variables, for the evaluation and for the check of their sizes."""

    values: Any
    inputs: Inputs


class BoundedProgram:
    """A compiled expression that is not evaluated if that could take too long."""

    def __init__(self, program: Program, expression: str) -> None:
        self._program = program
        self._loops = Loops(expression)
        self.result = program.result
        self.full_result = program.full_result

    def evaluate(self, activation: Activation) -> Any:
        """See `Program.evaluate`."""
        if why := activation.inputs.error(self._loops):
            raise EvaluationError(why)
        return self._program.evaluate(activation.values)


class Expressions:
    """The expressions of one policy or webhook."""

    def __init__(self, *, params: bool, namespace: bool = True, mutations: bool = False) -> None:
        """*params* and *namespace*: whether there are ``params``, and a ``namespaceObject``.

        *mutations*: whether there are expressions of mutations, too.
        """
        self._mutations = mutations
        names = _DYNAMIC if namespace else _DYNAMIC[:-1]
        self._names = (*names, *(("params",) if params else ()))
        self._variables: dict[str, Variable] = {}

    def define(self, name: str, expression: str) -> None:
        """Define a variable for the expressions that are compiled afterwards.

        Raises:
            CompileError: the expression has an error.
        """
        self.compile(expression)
        text, uses = _renamed(expression)
        self._variables[name] = Variable(text, uses)

    def compile_mutation(self, expression: str) -> BoundedProgram:
        """Compile an expression that constructs objects; see :func:`.mutation_objects.to_json`.

        Raises:
            CompileError: it has an error.
        """
        return self.compile(mutation_objects.rewrite(expression))

    def compile(self, expression: str, *, authorizer: bool = True) -> BoundedProgram:
        """Compile an expression; without *authorizer* it may not use that.

        Raises:
            CompileError: it has an error.
        """
        text, uses = _renamed(expression)
        for name in reversed(self._needed(uses)):
            text = f"cel.bind({_PREFIX}{name}, {self._variables[name].expression}\n, {text}\n)"
        if not authorizer:
            _compiled(self._names, text, authorizer=False, mutations=self._mutations)
        # All programs get the values of all variables.
        return _compiled(self._names, text, authorizer=True, mutations=self._mutations)

    def _needed(self, uses: Iterable[str]) -> list[str]:
        """Return the variables that these ones need, in the order of their definition."""
        wanted: set[str] = set()
        waiting = list(uses)
        while waiting:
            name = waiting.pop()
            if name in wanted:
                continue
            if name not in self._variables:
                raise CompileError(f"undefined field '{name}' of variables")
            wanted.add(name)
            waiting += self._variables[name].uses
        return [name for name in self._variables if name in wanted]

    def activation(self, values: Mapping[str, Any]) -> Activation:
        """Return the values of all variables but those of the policy itself."""
        environment = _environment(self._names, authorizer=True, mutations=self._mutations)
        return Activation(environment.activation(values), Inputs(values.values()))


@cache
def _environment(names: tuple[str, ...], *, authorizer: bool, mutations: bool) -> Environment:
    variables = dict.fromkeys(names, "dyn")
    if authorizer:
        variables |= {"authorizer": AUTHORIZER, REQUEST_RESOURCE: RESOURCE_CHECK}
    signatures = (*SIGNATURES, *mutation_objects.SIGNATURES) if mutations else SIGNATURES
    return Environment(variables, signatures=signatures)


@lru_cache(maxsize=2048)
def _compiled(
    names: tuple[str, ...], text: str, *, authorizer: bool, mutations: bool
) -> BoundedProgram:
    """Compile an expression once for its validation and its use."""
    environment = _environment(names, authorizer=authorizer, mutations=mutations)
    return BoundedProgram(environment.compile(text), text)


def _renamed(expression: str) -> tuple[str, tuple[str, ...]]:
    """Return an expression with its variables as identifiers, and their names."""
    found: list[str] = []
    pieces: list[str] = []
    position = 0
    for literal in LITERAL.finditer(expression):
        pieces += [_rename(expression[position : literal.start()], found), literal.group()]
        position = literal.end()
    pieces.append(_rename(expression[position:], found))
    return "".join(pieces), tuple(found)


def _rename(text: str, found: list[str]) -> str:
    def replace(match: re.Match[str]) -> str:
        found.append(match[1])
        return _PREFIX + match[1]

    return _USE.sub(replace, _REQUEST_RESOURCE.sub(REQUEST_RESOURCE, text))


def check_result(program: BoundedProgram, allowed: Sequence[str]) -> None:
    """Check the type of an expression, which must be known before the evaluation.

    Raises:
        CompileError: it is another one.
    """
    if program.result not in allowed:
        text = f"must evaluate to {' or '.join(allowed)} but got {program.result}"
        raise CompileError(text)
