"""MutatingAdmissionPolicies and their bindings."""

import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ....machinery.cel.environment import CompileError, EvaluationError
from ..authorization.authorizer import Authorizer
from ..cel import mutation_objects
from ..cel.policy_expressions import BoundedProgram, Expressions
from ..errors.status import forbidden
from ..http.requests import Json
from ..kinds.info import KindInfo
from ..kinds.patches import PatchError, TestFailedError, json_patch
from ..managedfields import type_checks, typed
from ..managedfields.types import type_of_kind
from .attributes import AdmissionAttributes
from .conditions import authorizing, subject_in
from .matching import is_exempt
from .mutations import as_mutations_see, finish
from .policies import MAX_SECONDS, ParamsError, Policy, PolicySet, Readers

_OUT_OF_BUDGET = (
    "mutation failed due to running out of cost budget, no further mutations will be run"
)


class MutationError(Exception):
    """A mutation is not possible; the text is the reason."""


class Mutation(NamedTuple):
    """One mutation of a policy."""

    expression: str
    program: BoundedProgram
    is_patch: bool
    """Whether its value is a list of operations, and not an object to apply."""


class MutatingPolicy(Policy):
    """A MutatingAdmissionPolicy."""

    mutates = True

    def __init__(self, obj: Json) -> None:
        super().__init__(obj)
        self.reinvoked = self.spec.get("reinvocationPolicy") == "IfNeeded"
        self.mutations: list[Mutation] = []

    def compile_rules(self, expressions: Expressions) -> None:
        """See `Policy.compile_rules`."""
        self.mutations = []
        for each in self.spec.get("mutations") or ():
            is_patch = each.get("patchType") == "JSONPatch"
            text = (each["jsonPatch" if is_patch else "applyConfiguration"]["expression"]).strip()
            self.mutations.append(Mutation(text, expressions.compile_mutation(text), is_patch))


class Invocation(NamedTuple):
    """A policy that applies to a write, with one of its parameters."""

    policy: MutatingPolicy
    binding: str
    kind: KindInfo
    params: Json | None


class PolicyFailure(NamedTuple):
    """A policy that cannot be applied."""

    message: str
    reason: str
    ignored: bool


class Run(NamedTuple):
    """What policies have done to a write."""

    obj: Json
    is_mutated: bool
    """Whether any mutation was applied, even if it changed nothing."""

    reinvocable: Sequence[Invocation]
    """What runs again if anything changes the object afterwards."""


class MutatingPolicies(PolicySet[MutatingPolicy]):
    """All MutatingAdmissionPolicies."""

    def __init__(self, readers: Readers, authorizer: Authorizer) -> None:
        super().__init__(MutatingPolicy, readers, authorizer)

    def mutate(self, attributes: AdmissionAttributes, obj: Json) -> Run:
        """Return *obj* as all policies change it.

        Raises:
            StatusError: a policy fails, or its result is no object of the kind.
        """
        if is_exempt(attributes.kind.resource):
            return Run(obj, False, ())
        errors: list[PolicyFailure] = []
        found = list(self._invocations(attributes, as_mutations_see(attributes, obj), errors))
        run = self._run(attributes, obj, found, errors)
        _raise_first(attributes, errors)
        return run

    def mutate_again(
        self, attributes: AdmissionAttributes, obj: Json, invocations: Sequence[Invocation]
    ) -> Json:
        """Return *obj* as policies change it that have run for the write before.

        Raises:
            StatusError: a policy fails, or its result is no object of the kind.
        """
        errors: list[PolicyFailure] = []
        run = self._run(attributes, obj, invocations, errors)
        _raise_first(attributes, errors)
        return run.obj

    def _invocations(
        self, attributes: AdmissionAttributes, obj: Json, errors: list[PolicyFailure]
    ) -> Iterator[Invocation]:
        for policy in self.active:
            kind = self.matching_kind(policy.match, attributes, obj)
            if kind is None:
                continue
            for binding in self._bindings[policy.name]:
                if binding.match is not None and not self.matching_kind(
                    binding.match, attributes, obj
                ):
                    continue
                try:
                    all_params = list(self.params(policy, binding, attributes))
                except ParamsError as error:
                    text = f"failed to configure binding: {error}"
                    errors.append(_failure(policy, binding.name, text, "Forbidden"))
                    continue
                for params in all_params:
                    yield Invocation(policy, binding.name, kind, params)

    def _run(
        self,
        attributes: AdmissionAttributes,
        obj: Json,
        invocations: Sequence[Invocation],
        errors: list[PolicyFailure],
    ) -> Run:
        is_mutated = False
        reinvocable = []
        namespace = None
        if attributes.namespace and attributes.kind.resource.kind != "Namespace":
            namespace = self._readers.namespace(attributes.namespace)
        end = time.thread_time() + MAX_SECONDS
        with authorizing(self._authorizer, attributes.user):
            for each in invocations:
                try:
                    _, activation = _activation(each, attributes, obj, namespace)
                    if not each.policy.applies(activation):
                        continue
                except (CompileError, EvaluationError) as error:
                    errors.append(_failure(each.policy, each.binding, str(error)))
                    continue
                for mutation in each.policy.mutations:
                    try:
                        if time.thread_time() > end:
                            raise MutationError(_OUT_OF_BUDGET)
                        seen, activation = _activation(each, attributes, obj, namespace)
                        changed = _mutated(each.kind, mutation, seen, activation)
                        is_mutated = True
                    except MutationError as error:
                        errors.append(_failure(each.policy, each.binding, str(error)))
                        continue
                    if changed is not seen:
                        obj = finish(attributes, each.kind, changed, obj, by="a policy")
                if each.policy.reinvoked:
                    reinvocable.append(each)
        return Run(obj, is_mutated, reinvocable)


def _activation(
    invocation: Invocation, attributes: AdmissionAttributes, obj: Json, namespace: Json | None
) -> tuple[Json, Any]:
    """Return *obj* as a policy sees it, and the values of all variables."""
    subject = subject_in(invocation.kind, attributes, as_mutations_see(attributes, obj))
    activation = invocation.policy.activation(subject, namespace, invocation.params)
    return subject.obj or {}, activation


def _mutated(kind: KindInfo, mutation: Mutation, obj: Json, activation: Any) -> Json:
    """Return *obj*, which is in *kind*, with a mutation; *obj* itself if a test of it fails.

    Raises:
        MutationError: it is not possible.
    """
    try:
        value = mutation_objects.to_json(mutation.program.evaluate(activation))
    except mutation_objects.TypeNameError as error:
        raise MutationError(f"type mismatch: {error}") from error
    except EvaluationError as error:
        text = f"expression '{mutation.expression}' resulted in error: {error}"
        raise MutationError(text) from error
    return _patched(obj, value) if mutation.is_patch else _applied(kind, obj, value)


def _patched(obj: Json, operations: Any) -> Any:
    try:
        # As kube-apiserver: what has no value sets null.
        return json_patch(obj, [{"value": None, **each} for each in operations])
    except TestFailedError:
        return obj
    except PatchError as error:
        raise MutationError(f"JSON Patch: {error}") from error


def _applied(kind: KindInfo, obj: Json, value: Json) -> Json:
    resource = kind.resource
    config = {**value, "apiVersion": resource.api_version, "kind": resource.kind}
    type_ = type_of_kind(kind)
    if problems := type_checks.validate(type_, config):
        shown = problems[0]
        if len(problems) > 1:
            shown = "errors:\n" + "".join(f"  {each}\n" for each in problems)
        text = f"failed to convert patch object to typed object: {shown}"
        raise MutationError(f"error applying patch: {text}")
    if atomics := list(type_checks.atomics(type_, config)):
        text = f"may not mutate atomic arrays, maps or structs: {', '.join(atomics)}"
        raise MutationError(f"error applying patch: invalid ApplyConfiguration: {text}")
    try:
        merged: Json = typed.merge(type_, obj, config)
    except (typed.TypeMismatchError, typed.ItemError) as error:
        raise MutationError(f"error applying patch: failed to merge patch: {error}") from error
    return merged


def _failure(policy: Policy, binding: str, text: str, reason: str = "Invalid") -> PolicyFailure:
    message = f"policy '{policy.name}' with binding '{binding}' denied request: {text}"
    return PolicyFailure(message, reason, policy.ignores_failures)


def _raise_first(attributes: AdmissionAttributes, failures: list[PolicyFailure]) -> None:
    """Raise the first failure that is not ignored; its causes are all of them."""
    counted = [each for each in failures if not each.ignored]
    if not counted:
        return
    causes = [{"message": each.message} for each in counted]
    error = forbidden(attributes.kind.resource, attributes.name, "", causes=causes)
    error.message, error.reason = counted[0].message, counted[0].reason
    raise error
