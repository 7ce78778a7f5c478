"""Values that expressions see of a write, and the match conditions of webhooks and policies."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from ....machinery.cel.environment import EvaluationError
from ..authorization.authorizer import Authorizer
from ..authorization.rules import Attributes
from ..cel.authorizer_functions import AUTHORIZER_VALUE, Check, deciding, resource_check
from ..cel.policy_expressions import REQUEST_RESOURCE, BoundedProgram, Expressions
from ..http.auth import AUTHENTICATED_GROUP, User
from ..http.requests import Json
from ..kinds.info import KindInfo
from .attributes import AdmissionAttributes
from .reviews import review_request

_ACCOUNT = "system:serviceaccount"


def authorizing(authorizer: Authorizer, user: User) -> AbstractContextManager[None]:
    """Let expressions within the block check the rights of *user*, or of a service account."""

    def decide(check: Check, verb: str) -> tuple[bool, str]:
        subject = user
        if account := check.get("account"):
            groups = (
                f"{_ACCOUNT}s",
                f"{_ACCOUNT}s:{account.partition(':')[0]}",
                AUTHENTICATED_GROUP,
            )
            subject = User(name=f"{_ACCOUNT}:{account}", groups=groups)
        fields = {key: value for key, value in check.items() if key != "account"}
        decision = authorizer.authorize(subject, Attributes(verb, **fields))
        return decision.allowed, decision.reason

    return deciding(decide)


class Subject(NamedTuple):
    """A write in the kind in which it is reviewed."""

    attributes: AdmissionAttributes
    kind: KindInfo
    obj: Json | None
    old: Json | None

    def values(self) -> dict[str, Any]:
        """Return the variables that each expression has."""
        attributes, resource = self.attributes, self.attributes.kind.resource
        request = review_request(attributes, self.kind, None, None)
        del request["object"], request["oldObject"]
        asked = {
            "group": resource.group,
            "resource": resource.plural,
            "subresource": attributes.object_path.subresource,
            "name": attributes.name,
            "namespace": attributes.review_namespace,
        }
        return {
            "object": self.obj,
            "oldObject": self.old,
            "request": {"name": "", "namespace": "", "options": None, **request},
            "authorizer": AUTHORIZER_VALUE,
            REQUEST_RESOURCE: resource_check(asked),
        }


class Condition(NamedTuple):
    """A match condition."""

    name: str
    expression: str
    program: BoundedProgram


class Conditions:
    """The match conditions of one webhook."""

    def __init__(self, conditions: Sequence[Json], authorizer: Authorizer) -> None:
        """Keep *conditions*; they are compiled on first use."""
        self._declared = conditions
        self._authorizer = authorizer
        self._expressions: Expressions | None = None
        self._compiled: list[Condition] = []

    def match(self, subject: Subject) -> bool:
        """Return whether all conditions hold.

        Raises:
            EvaluationError: one cannot be evaluated, and no other one is false.
            CompileError: one has an error.
        """
        if not self._declared:
            return True
        if self._expressions is None:
            expressions = Expressions(params=False, namespace=False)
            self._compiled = compile_conditions(expressions, self._declared)
            self._expressions = expressions
        with authorizing(self._authorizer, subject.attributes.user):
            return all_hold(self._compiled, self._expressions.activation(subject.values()))


def compile_conditions(expressions: Expressions, declared: Sequence[Json]) -> list[Condition]:
    """Compile match conditions.

    Raises:
        CompileError: one has an error.
    """
    return [
        Condition(each["name"], each["expression"], expressions.compile(each["expression"]))
        for each in declared
    ]


def all_hold(conditions: Sequence[Condition], activation: Any) -> bool:
    """Return whether all conditions hold; one that is false outweighs one that fails.

    Raises:
        EvaluationError: one cannot be evaluated, and no other one is false.
    """
    errors = []
    for each in conditions:
        try:
            if each.program.evaluate(activation) is False:
                return False
        except EvaluationError as error:
            errors.append(f"expression '{each.expression}' resulted in error: {error}")
    if errors:
        distinct = list(dict.fromkeys(errors))
        text = distinct[0] if len(distinct) == 1 else f"[{', '.join(distinct)}]"
        raise EvaluationError(text)
    return True


def in_kind(
    kind: KindInfo, attributes: AdmissionAttributes, *objects: Json | None
) -> list[Json | None]:
    """Return *objects*, which are in the version of the request, in *kind*."""
    requested = attributes.kind
    if kind is requested:
        return list(objects)
    return [each and kind.from_stored(requested.to_stored({**each})) for each in objects]


def subject_in(kind: KindInfo, attributes: AdmissionAttributes, obj: Json | None) -> Subject:
    """Return a write of *obj* in another kind."""
    shown, old = in_kind(kind, attributes, obj, attributes.old_object)
    return Subject(attributes, kind, shown, old)
