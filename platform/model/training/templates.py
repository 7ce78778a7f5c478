"""The fields of a raw pod template that defaults, validation and Services need."""

from typing import Any

import msgspec

from ..base import ApiStruct


class Port(ApiStruct, frozen=True):
    """``containers[].ports[]``."""

    name: str = ""
    container_port: int = 0


class Container(ApiStruct, frozen=True):
    """A container of the template."""

    name: str = ""
    image: str = ""
    ports: tuple[Port, ...] = ()

    def port(self, name: str) -> int | None:
        """Return the number of the port *name*, if the container has it."""
        return next((port.container_port for port in self.ports if port.name == name), None)


class _PodSpec(ApiStruct, frozen=True):
    containers: tuple[Container, ...] = ()


class _Template(ApiStruct, frozen=True):
    spec: _PodSpec = _PodSpec()


def containers(template: msgspec.Raw) -> tuple[Container, ...]:
    """Return the containers of *template*.

    Raises:
        msgspec.ValidationError: a field has another type.
    """
    return msgspec.json.decode(template, type=_Template).spec.containers


def main_container(template: msgspec.Raw, name: str) -> Container | None:
    """Return the container *name* of *template*, if it has it.

    Raises:
        msgspec.ValidationError: a field has another type.
    """
    return next((each for each in containers(template) if each.name == name), None)


def with_port(template: msgspec.Raw, container: str, port: Port) -> msgspec.Raw:
    """Return *template* with *port* in *container*, by default in the first one.

    It is returned unchanged if a port of this name exists there, or without containers.

    Raises:
        msgspec.ValidationError: a field has another type.
    """
    found = containers(template)
    if not found:
        return template
    names = [each.name for each in found]
    index = names.index(container) if container in names else 0
    if found[index].port(port.name) is not None:
        return template
    raw: dict[str, Any] = msgspec.json.decode(template)
    changed = raw["spec"]["containers"][index]
    changed["ports"] = [*changed.get("ports", ()), msgspec.to_builtins(port)]
    return msgspec.Raw(msgspec.json.encode(raw))
