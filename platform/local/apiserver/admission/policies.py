"""Policies and their bindings: what both kinds have in common, and the validating ones."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from ....machinery.cel.environment import CompileError, EvaluationError, evaluate_message
from ....model.meta import LabelSelector
from ....model.names import Resource
from ....model.selectors import SelectorError, from_label_selector
from ..authorization.authorizer import Authorizer
from ..cel.policy_expressions import BoundedProgram, Expressions
from ..errors.status import StatusError, forbidden
from ..http.requests import Json
from ..kinds.info import KindInfo
from .attributes import AdmissionAttributes
from .conditions import Condition, Subject, all_hold, authorizing, compile_conditions, subject_in
from .matching import Match, NamespaceReader, is_exempt, labels_of

log = logging.getLogger(__name__)

POLICY, BINDING = "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"
MUTATING_POLICY = "MutatingAdmissionPolicy"
MUTATING_BINDING = "MutatingAdmissionPolicyBinding"
MAX_SECONDS = 1.0
"""Processor time of the policies for one write."""

_OUT_OF_BUDGET = (
    "validation failed due to running out of cost budget, no further validation rules will be run"
)
_CODES = {"Unauthorized": 401, "Forbidden": 403, "RequestEntityTooLarge": 413, "Invalid": 422}


T = TypeVar("T")
P = TypeVar("P", bound="Policy")


class ParamsError(Exception):
    """The parameters of a binding cannot be determined; the text is the reason."""


class Validation(NamedTuple):
    """One validation of a policy."""

    expression: str
    program: BoundedProgram
    message: str
    message_program: BoundedProgram | None
    reason: str


class Decision(NamedTuple):
    """Why a policy denies a write."""

    message: str
    reason: str = "Invalid"


class Readers(NamedTuple):
    """What policies read of the cluster, as the write under review finds it."""

    namespace: NamespaceReader
    kind_named: Callable[[str, str], KindInfo | None]
    """Returns the kind of an API version and kind name."""

    get: Callable[[Resource, str, str], Json | None]
    list: Callable[[Resource], Iterable[Json]]
    equivalents: Callable[[KindInfo], Sequence[KindInfo]]


class Binding:
    """A binding of a policy."""

    def __init__(self, obj: Json) -> None:
        spec = obj.get("spec") or {}
        self.name = str(obj["metadata"]["name"])
        self.policy = str(spec.get("policyName", ""))
        self.actions = tuple(spec.get("validationActions") or ())
        self.param_ref: Json | None = spec.get("paramRef")
        limits = spec.get("matchResources")
        self.match = None
        if limits:
            # Without rules, a binding has those of its policy.
            rules = limits.get("resourceRules") or [_EVERYTHING]
            excluded = limits.get("excludeResourceRules") or ()
            self.match = Match(limits, rules, excluded=excluded)


_EVERYTHING: Json = {
    "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"], "operations": ["*"],
}  # fmt: skip


class Policy:
    """A policy; its expressions are compiled when a write first matches."""

    mutates = False
    """Whether its expressions may construct objects."""

    def __init__(self, obj: Json) -> None:
        self.spec: Json = obj.get("spec") or {}
        self.name = str(obj["metadata"]["name"])
        constraints = self.spec.get("matchConstraints") or {}
        self.match = Match(
            constraints,
            constraints.get("resourceRules") or (),
            excluded=constraints.get("excludeResourceRules") or (),
        )
        self.ignores_failures = self.spec.get("failurePolicy") == "Ignore"
        self.param_kind: Json | None = self.spec.get("paramKind")
        self._expressions: Expressions | None = None
        self._conditions: list[Condition] = []

    def _compiled(self) -> Expressions:
        if self._expressions is None:
            expressions = Expressions(params=self.param_kind is not None, mutations=self.mutates)
            conditions = self.spec.get("matchConditions") or ()
            self._conditions = compile_conditions(expressions, conditions)
            for each in self.spec.get("variables") or ():
                expressions.define(each["name"], each["expression"])
            self.compile_rules(expressions)
            self._expressions = expressions
        return self._expressions

    def activation(self, subject: Subject, namespace: Json | None, params: Json | None) -> Any:
        """Return the values of the variables.

        Raises:
            CompileError: an expression has an error.
        """
        values = {**subject.values(), "namespaceObject": namespace}
        if self.param_kind is not None:
            values["params"] = params
        return self._compiled().activation(values)

    def applies(self, activation: Any) -> bool:
        """Return whether the match conditions hold for the values of the variables.

        Raises:
            EvaluationError: one cannot be evaluated.
        """
        return all_hold(self._conditions, activation)

    def compile_rules(self, expressions: Expressions) -> None:
        """Compile what the policy consists of.

        Raises:
            CompileError: an expression has an error.
        """
        raise NotImplementedError


class ValidatingPolicy(Policy):
    """A ValidatingAdmissionPolicy."""

    def __init__(self, obj: Json) -> None:
        super().__init__(obj)
        self._validations: list[Validation] = []

    def compile_rules(self, expressions: Expressions) -> None:
        """See `Policy.compile_rules`."""
        self._validations = [
            Validation(
                each["expression"],
                expressions.compile(each["expression"]),
                (each.get("message") or "").strip(),
                expressions.compile(each["messageExpression"], authorizer=False)
                if each.get("messageExpression")
                else None,
                each.get("reason") or "Invalid",
            )
            for each in self.spec.get("validations") or ()
        ]

    def evaluate(
        self, subject: Subject, namespace: Json | None, params: Json | None
    ) -> list[Decision]:
        """Return why the policy denies the write with *params*; of all validations that fail."""
        try:
            activation = self.activation(subject, namespace, params)
            if not self.applies(activation):
                return []
        except (CompileError, EvaluationError) as error:
            return [] if self.ignores_failures else [Decision(str(error))]
        return list(self._denials(activation))

    def _denials(self, activation: Any) -> Iterator[Decision]:
        for each in self._validations:
            try:
                if each.program.evaluate(activation) is True:
                    continue
            except EvaluationError as error:
                if not self.ignores_failures:
                    text = f"expression '{each.expression}' resulted in error: {error}"
                    yield Decision(text)
                continue
            message = evaluate_message(each.message_program, activation) or each.message
            yield Decision(message or f"failed expression: {each.expression.strip()}", each.reason)


class PolicySet(Generic[P]):
    """All policies of one kind, and their bindings."""

    def __init__(self, read: Callable[[Json], P], readers: Readers, authorizer: Authorizer) -> None:
        self._read = read
        self._readers = readers
        self._authorizer = authorizer
        self._policies: tuple[P, ...] = ()
        self._bindings: dict[str, list[Binding]] = {}
        self.active: tuple[P, ...] = ()
        """Policies with a binding, in the order of their names."""

    def configure(self, objects: Iterable[Json], *, bindings: bool) -> None:
        """Replace all policies, or all *bindings*."""
        ordered = sorted(objects, key=lambda each: str(each["metadata"]["name"]))
        if not bindings:
            self._policies = tuple(found for each in ordered if (found := _read(self._read, each)))
        else:
            self._bindings = {}
            for each in ordered:
                if binding := _read(Binding, each):
                    self._bindings.setdefault(binding.policy, []).append(binding)
        self.active = tuple(each for each in self._policies if each.name in self._bindings)

    def matching_kind(
        self, match: Match, attributes: AdmissionAttributes, obj: Json | None
    ) -> KindInfo | None:
        """Return the kind in which a policy or binding reviews a write; ``None``: it does not."""
        return match.resource_for(
            attributes,
            obj,
            equivalents=self._readers.equivalents(attributes.kind),
            namespace=self._readers.namespace,
        )

    def params(
        self, policy: Policy, binding: Binding, attributes: AdmissionAttributes
    ) -> Iterator[Json | None]:
        """Yield the parameters with which a policy is evaluated.

        Raises:
            ParamsError: they cannot be determined.
        """
        wanted, ref = policy.param_kind, binding.param_ref
        if wanted is None or ref is None:
            yield None
            return
        kind = self._readers.kind_named(wanted.get("apiVersion", ""), wanted.get("kind", ""))
        if kind is None:
            shown = f"{wanted.get('apiVersion', '')}, Kind={wanted.get('kind', '')}"
            raise ParamsError(f"paramKind kind `{shown}` not known")
        namespace = self._param_namespace(kind, ref, attributes)
        found = False
        for params in self._select(kind, ref, namespace):
            found = True
            yield params
        if not found and ref.get("parameterNotFoundAction", "Deny") == "Deny":
            raise ParamsError(
                "no params found for policy binding with `Deny` parameterNotFoundAction"
            )

    def _param_namespace(self, kind: KindInfo, ref: Json, attributes: AdmissionAttributes) -> str:
        if not kind.resource.namespaced:
            if ref.get("namespace"):
                raise ParamsError(
                    "paramRef.namespace must not be provided for a cluster-scoped `paramKind`"
                )
            return ""
        namespace = str(ref.get("namespace") or attributes.namespace)
        if not namespace:
            raise ParamsError(
                "cannot use namespaced paramRef in policy binding that matches cluster-scoped "
                "resources"
            )
        return namespace

    def _select(self, kind: KindInfo, ref: Json, namespace: str) -> Iterator[Json]:
        if ref.get("name"):
            found = self._readers.get(kind.resource, namespace, ref["name"])
            if found is not None:
                yield found
            return
        chosen = ref.get("selector") or {}
        selector = from_label_selector(msgspec.convert(chosen, LabelSelector))
        for each in self._readers.list(kind.resource):
            in_place = (each["metadata"].get("namespace") or "") == namespace
            if in_place and selector.matches(labels_of(each)):
                yield each


class ValidatingPolicies(PolicySet[ValidatingPolicy]):
    """All ValidatingAdmissionPolicies."""

    def __init__(self, readers: Readers, authorizer: Authorizer) -> None:
        super().__init__(ValidatingPolicy, readers, authorizer)

    def validate(self, attributes: AdmissionAttributes, obj: Json | None) -> None:
        """Let the policies check a write.

        Raises:
            StatusError: a policy denies it.
        """
        if is_exempt(attributes.kind.resource):
            return
        denials: list[tuple[str, Decision]] = []
        end = time.thread_time() + MAX_SECONDS
        for policy in self.active:
            kind = self.matching_kind(policy.match, attributes, obj)
            if kind is not None:
                with authorizing(self._authorizer, attributes.user):
                    denials += self._apply(policy, subject_in(kind, attributes, obj), end)
        if denials:
            raise _denied(attributes, obj, *denials[0])

    def _apply(
        self, policy: ValidatingPolicy, subject: Subject, end: float
    ) -> Iterator[tuple[str, Decision]]:
        """Yield the denials by *policy* with the name of its binding, and add its warnings.

        *end*: the thread's processor time at which the evaluation ends.
        """
        attributes = subject.attributes
        namespace = None
        if attributes.namespace:
            namespace = self._readers.namespace(attributes.namespace)
        for binding in self._bindings[policy.name]:
            if binding.match is not None and not self.matching_kind(
                binding.match, attributes, subject.obj
            ):
                continue
            by = f"ValidatingAdmissionPolicy '{policy.name}' with binding '{binding.name}'"
            try:
                found = list(self.params(policy, binding, attributes))
            except ParamsError as error:
                if not policy.ignores_failures:
                    yield by, Decision(f"failed to configure binding: {error}")
                continue
            for decision in _decisions(policy, subject, namespace, found, end):
                if "Warn" in binding.actions and attributes.warnings is not None:
                    text = f"Validation failed for {by}: {decision.message}"
                    attributes.warnings.append(text)
                if "Deny" in binding.actions:
                    yield by, decision


def _decisions(
    policy: ValidatingPolicy,
    subject: Subject,
    namespace: Json | None,
    all_params: Iterable[Json | None],
    end: float,
) -> Iterator[Decision]:
    """Yield why a policy denies a write with any of its parameters, until the time *end*."""
    for params in all_params:
        if time.thread_time() > end:
            if not policy.ignores_failures:
                yield Decision(_OUT_OF_BUDGET)
            return
        yield from policy.evaluate(subject, namespace, params)


def _read(read: Callable[[Json], T], obj: Json) -> T | None:
    try:
        return read(obj)
    except (SelectorError, msgspec.ValidationError):
        # Only of an object that an older version has stored.
        log.exception("%s is invalid and has no effect", obj["metadata"]["name"])
        return None


def _denied(
    attributes: AdmissionAttributes, obj: Json | None, by: str, decision: Decision
) -> StatusError:
    """Return the error of the first denial."""
    name = attributes.name or str(((obj or {}).get("metadata") or {}).get("name", "Unknown"))
    message = f"{by} denied request: {decision.message}"
    error = forbidden(attributes.kind.resource, name, message, causes=[{"message": message}])
    error.code, error.reason = _CODES.get(decision.reason, 422), decision.reason
    return error
