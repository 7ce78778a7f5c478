"""Validation of HyperNodes.

An update that leaves the spec unchanged is valid, so that a HyperNode stored without validation
does not block updates of labels or finalizers. Members need not exist yet.
"""

from collections.abc import Iterator, Mapping

from ..model.admission import AdmissionRequest, DeniedError, ObjectReader, nested_object
from ..model.field_errors import join_errors
from ..model.hypernode import (
    HYPERNODE,
    HyperNode,
    Member,
    PatternError,
    compile_pattern,
    selected_names,
)
from ..model.names import HYPERNODES
from ..model.selectors import SelectorError, from_label_selector
from .decoding import decode


def validate(request: AdmissionRequest, reader: ObjectReader) -> None:
    """Validate a HyperNode.

    Raises:
        DeniedError: with all errors, in one line.
    """
    obj, old = request.object or {}, request.old_object
    if old is not None and nested_object(obj, "spec") == nested_object(old, "spec"):
        return
    hypernode = decode(obj, HyperNode)
    errors = list(_errors(hypernode))
    if not errors:
        errors = list(_cycle_errors(hypernode, _others(hypernode, reader)))
    if message := join_errors(errors):
        raise DeniedError(message)


def warnings(request: AdmissionRequest, reader: ObjectReader) -> list[str]:
    """Return a warning for each member that can have no effect."""
    hypernode = decode(request.object or {}, HyperNode)
    others = _others(hypernode, reader)
    return list(_warnings(hypernode, others))


def topology_warnings(request: AdmissionRequest, reader: ObjectReader) -> list[str]:
    """Return a warning if a job or PodGroup gets a network topology while nothing is known about
    the network."""
    spec, old = (nested_object(obj, "spec") for obj in (request.object, request.old_object))
    topology = nested_object(spec, "networkTopology")
    if not topology or topology == old.get("networkTopology") or any(reader.list(HYPERNODES)):
        return []
    return [
        "spec.networkTopology has no effect as long as there are no HyperNodes, unless the "
        "scheduler is configured to use labels of nodes as tiers"
    ]


def _errors(hypernode: HyperNode) -> Iterator[str]:
    if not hypernode.spec.members:
        yield "spec.members: member must have at least one member"
    for index, member in enumerate(hypernode.spec.members):
        for path, error in _member_errors(member):
            yield f"spec.members[{index}].selector{path}: {error}"


def _member_errors(member: Member) -> Iterator[tuple[str, str]]:
    """Yield errors with their paths. The schema has the first rule, too, but in CEL, which the
    embedded API server does not evaluate."""
    selector = member.selector
    given = (selector.exact_match, selector.regex_match, selector.label_match)
    if sum(each is not None for each in given) > 1:
        yield "", "Only one of ExactMatch, RegexMatch, or LabelMatch can be specified"
    if selector.regex_match is not None:
        try:
            compile_pattern(selector.regex_match.pattern)
        except PatternError as error:
            yield ".regexMatch.pattern", f"member regexMatch pattern is invalid: {error}"
    if selector.label_match is not None:
        try:
            from_label_selector(selector.label_match)
        except SelectorError as error:
            yield ".labelMatch", str(error)


def _others(hypernode: HyperNode, reader: ObjectReader) -> dict[str, HyperNode]:
    """Return the stored HyperNodes except *hypernode*, by name."""
    stored = (decode(each, HyperNode) for each in reader.list(HYPERNODES))
    name = hypernode.metadata.name
    return {each.metadata.name: each for each in stored if each.metadata.name != name}


def _cycle_errors(hypernode: HyperNode, others: Mapping[str, HyperNode]) -> Iterator[str]:
    """Yield an error for each member of *hypernode* that contains it, with the path to it."""
    name = hypernode.metadata.name
    every = {**others, name: hypernode}
    for index, member in enumerate(hypernode.spec.members):
        for first in _members(member, every):
            if cycle := _path(first, name, every):
                text = " -> ".join((name, *cycle))
                yield f"spec.members[{index}]: HyperNodes must not contain each other: {text}"
                return


def _path(start: str, end: str, every: Mapping[str, HyperNode]) -> list[str]:
    """Return the HyperNodes from *start* to *end*, which it contains; empty if it does not."""
    parents = {start: ""}
    waiting = [start]
    while waiting:
        current = waiting.pop()
        if current == end:
            found = [current]
            while before := parents[found[-1]]:
                found.append(before)
            return found[::-1]
        for member in every[current].spec.members:
            for lower in _members(member, every):
                if lower not in parents:
                    parents[lower] = current
                    waiting.append(lower)
    return []


def _members(member: Member, every: Mapping[str, HyperNode]) -> Iterator[str]:
    return selected_names(member.selector, every) if member.type == HYPERNODE else iter(())


def _warnings(hypernode: HyperNode, others: Mapping[str, HyperNode]) -> Iterator[str]:
    tier = hypernode.spec.tier
    for index, member in enumerate(hypernode.spec.members):
        path, selector = f"spec.members[{index}]", member.selector
        if not any((selector.exact_match, selector.regex_match, selector.label_match)):
            yield f"{path} selects nothing: it has no selector"
        elif selector.label_match is not None and member.type == HYPERNODE:
            yield f"{path} selects nothing: labelMatch selects nodes only"
        for name in _members(member, others):
            if others[name].spec.tier >= tier:
                yield (
                    f"{path} has no effect for HyperNode {name!r}: its tier"
                    f" {others[name].spec.tier} is not below {tier}"
                )
