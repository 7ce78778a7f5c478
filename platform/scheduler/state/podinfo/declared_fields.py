"""The fields of pods that plugins declare, and their values in an equivalence class.

Filters and scores are computed for an equivalence class, whose pods have equal specs. Labels,
annotations, names and priorities would give nearly every pod its own class. So only those fields
count that a plugin of the configuration declares, and a plugin reads only what it declares.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from ..core_types import Pod, PodSpec
from ..resources import Amounts, amounts

FieldValues = tuple[tuple[str, str | int | None], ...]
"""Declared fields and their values, ``None`` for a label or an annotation that a pod has not."""

_NAMESPACE, _NAME, _PRIORITY, _SCHEDULER = "namespace", "name", "priority", "schedulerName"
_LIMITED = ("cpu", "memory")


class HasFields(Protocol):
    """An equivalence class of pods, or the placement of a pod."""

    @property
    def fields(self) -> FieldValues:
        """What plugins have declared of the pods."""
        ...


class UndeclaredFieldError(LookupError):
    """A plugin has read a field of a pod that it does not declare."""

    def __init__(self, field: str) -> None:
        super().__init__(f"{field} of the pod is read and not declared in pod_fields")


@dataclass(frozen=True, slots=True)
class PodFields:
    """The fields of pods that a plugin reads; its attribute ``pod_fields`` declares them.

    Pods belong to different equivalence classes if they differ in one of them. So *name* gives
    every pod its own class: filters and scores are then computed for each pod.
    """

    labels: tuple[str, ...] = ()
    annotations: tuple[str, ...] = ()
    name: bool = False
    """Whether it reads name and namespace."""
    priority: bool = False
    scheduler_name: bool = False
    limits: bool = False
    """Whether it reads the limits of CPU and memory."""

    def __post_init__(self) -> None:
        """Check the types: the letters of one text would be taken for keys.

        Raises:
            TypeError: the labels or annotations are no tuple of texts.
        """
        for field, keys in (("labels", self.labels), ("annotations", self.annotations)):
            if not isinstance(keys, tuple) or not all(isinstance(key, str) for key in keys):
                raise TypeError(f"{field} of PodFields must be a tuple of keys, not {keys!r}")

    def __bool__(self) -> bool:
        flags = self.name or self.priority or self.scheduler_name or self.limits
        return bool(self.labels or self.annotations or flags)

    def of(self, pods: HasFields) -> "DeclaredPod":
        """Return the declared fields of *pods*: an equivalence class or a placement."""
        return DeclaredPod(self, pods.fields)

    def values(self, pod: Pod) -> FieldValues:
        """Return the declared fields of *pod*."""
        meta = pod.metadata
        found: list[tuple[str, str | int | None]] = [
            *((_label(key), meta.labels.get(key)) for key in self.labels),
            *((_annotation(key), meta.annotations.get(key)) for key in self.annotations),
        ]
        if self.name:
            found += [(_NAMESPACE, meta.namespace), (_NAME, meta.name)]
        if self.priority:
            found.append((_PRIORITY, pod.spec.priority or 0))
        if self.scheduler_name:
            found.append((_SCHEDULER, pod.spec.scheduler_name))
        if self.limits:
            found += ((_limit(name), units) for name, units in _limits(pod.spec).items())
        return tuple(found)


@dataclass(frozen=True, slots=True)
class DeclaredPod:
    """The fields that one plugin declares, of the pods of one equivalence class.

    Each of the methods and properties raises :class:`UndeclaredFieldError` for any other field.
    """

    _fields: PodFields
    _values: FieldValues

    def label(self, key: str) -> str | None:
        """Return the value of a label, ``None`` if the pods do not have it."""
        return self._text(_label(key), is_declared=key in self._fields.labels)

    def annotation(self, key: str) -> str | None:
        """Return the value of an annotation, ``None`` if the pods do not have it."""
        return self._text(_annotation(key), is_declared=key in self._fields.annotations)

    @property
    def name(self) -> str:
        """The name of the only pod of the class."""
        return str(self._text(_NAME, is_declared=self._fields.name))

    @property
    def namespace(self) -> str:
        """The namespace of the only pod of the class."""
        return str(self._text(_NAMESPACE, is_declared=self._fields.name))

    @property
    def priority(self) -> int:
        """The priority of the pods, 0 if they have none."""
        return int(self._value(_PRIORITY, is_declared=self._fields.priority) or 0)

    @property
    def scheduler_name(self) -> str:
        """The ``schedulerName`` of the pods."""
        return str(self._text(_SCHEDULER, is_declared=self._fields.scheduler_name))

    def limit(self, resource: str) -> int | None:
        """Return the limit of the pods for ``cpu`` in millicores, or ``memory`` in bytes.

        It is ``None`` if a container has none.
        """
        value = self._value(_limit(resource), is_declared=self._fields.limits)
        return None if value is None else int(value)

    def _text(self, field: str, *, is_declared: bool) -> str | None:
        value = self._value(field, is_declared=is_declared)
        return None if value is None else str(value)

    def _value(self, field: str, *, is_declared: bool) -> str | int | None:
        if is_declared:
            for known, value in self._values:
                if known == field:
                    return value
        raise UndeclaredFieldError(field)


def union(declared: Iterable[PodFields]) -> PodFields:
    """Return all fields that one of *declared* has."""
    every = tuple(declared)
    return PodFields(
        labels=tuple(sorted({key for each in every for key in each.labels})),
        annotations=tuple(sorted({key for each in every for key in each.annotations})),
        name=any(each.name for each in every),
        priority=any(each.priority for each in every),
        scheduler_name=any(each.scheduler_name for each in every),
        limits=any(each.limits for each in every),
    )


def _label(key: str) -> str:
    return f"label {key!r}"


def _annotation(key: str) -> str:
    return f"annotation {key!r}"


def _limit(resource: str) -> str:
    return f"limit of {resource}"


def _limits(spec: PodSpec) -> dict[str, int | None]:
    """Return what the containers of a pod may use together, or the limit of the pod as a whole if
    there is one; ``None`` without a limit."""
    whole = amounts(spec.resources.limits)
    containers: list[Amounts] = [amounts(each.resources.limits) for each in spec.containers]
    found: dict[str, int | None] = {}
    for name in _LIMITED:
        is_limited = all(name in each for each in containers)
        total = sum(each[name] for each in containers) if is_limited else None
        found[name] = whole.get(name, total)
    return found
