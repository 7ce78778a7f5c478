"""Validation of the claims of devices that a pod and its containers name."""

from collections import Counter
from collections.abc import Iterator
from itertools import repeat
from typing import Any

from ....model import validation
from ..errors.fields import FieldError, duplicate, invalid, not_found, required

Json = dict[str, Any]

_SOURCES = ("resourceClaimName", "resourceClaimTemplateName")
_CONTAINER_LISTS = ("containers", "initContainers", "ephemeralContainers")


def pod_claim_errors(spec: Json, path: str) -> Iterator[FieldError]:
    """Validate the claims in the spec of a pod, and that containers name only these."""
    claims, where = spec.get("resourceClaims") or [], f"{path}.resourceClaims"
    names: set[str] = set()
    for index, claim in enumerate(claims):
        yield from _claim_errors(claim, f"{where}[{index}]", names)
    if resources := (spec.get("resources") or {}).get("claims"):
        yield from _reference_errors(resources, f"{path}.resources.claims", names)
    for kind in _CONTAINER_LISTS:
        for index, container in enumerate(spec.get(kind) or ()):
            if used := (container.get("resources") or {}).get("claims"):
                where = f"{path}.{kind}[{index}].resources.claims"
                yield from _reference_errors(used, where, names)


def pod_claim_status_errors(pod: Json) -> Iterator[FieldError]:
    """Validate the names of the claims that were created for a pod."""
    known = {each.get("name") for each in (pod.get("spec") or {}).get("resourceClaims") or ()}
    seen: set[str] = set()
    for index, each in enumerate((pod.get("status") or {}).get("resourceClaimStatuses") or ()):
        path, name = f"status.resourceClaimStatuses[{index}]", each.get("name", "")
        if name not in known:
            text = "must match the name of an entry in `spec.resourceClaims`"
            yield invalid(f"{path}.name", name, text)
        if name in seen:
            yield duplicate(f"{path}.name", name)
        seen.add(name)
        claim = each.get("resourceClaimName")
        if claim is not None and (problem := validation.dns1123_subdomain_error(claim)):
            yield invalid(f"{path}.resourceClaimName", claim, problem)


def _claim_errors(claim: Json, path: str, names: set[str]) -> Iterator[FieldError]:
    name = claim.get("name", "")
    if not name:
        yield required(f"{path}.name")
    elif name in names:
        yield duplicate(f"{path}.name", name)
    else:
        if problem := validation.dns1123_label_error(name):
            yield invalid(f"{path}.name", name, problem)
        names.add(name)
    given = [each for each in _SOURCES if claim.get(each) is not None]
    if len(given) > 1:
        text = "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified"
        yield invalid(path, claim, text)
    if not given:
        text = "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"
        yield invalid(path, claim, text)
    for each in given:
        if problem := validation.dns1123_subdomain_error(claim[each]):
            yield invalid(f"{path}.{each}", claim[each], problem)


def _reference_errors(claims: list[Json], path: str, known: set[str]) -> Iterator[FieldError]:
    """Validate which claims a container uses: each as a whole, or single requests of it."""
    used: set[str] = set()
    requests_of = Counter[str]()  # how many single requests of a claim are used
    for index, claim in enumerate(claims):
        where, name, request = f"{path}[{index}]", claim.get("name", ""), claim.get("request")
        if not name:
            yield required(where)
            continue
        if name in used:
            yield duplicate(where, name)
        else:
            key = f"{name}/{request}" if request else name
            if request and (problem := validation.dns1123_label_error(request)):
                yield invalid(f"{where}.request", request, problem)
            if key in used:
                yield duplicate(where, key)
            elif request:
                requests_of[name] += 1
            else:
                yield from repeat(duplicate(where, name), requests_of[name])
            used.add(key)
        if name not in known:
            yield not_found(where, name)
