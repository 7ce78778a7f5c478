"""Share equal nodes of schemas, and what is compiled from them.

A pod template has thousands of nodes, and the definitions of jobs contain it nine times: with its
containers, init containers and ephemeral containers, which are almost equal.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

Schema = Mapping[str, Any]
R = TypeVar("R")

MAX_NODES = 50_000
"""Nodes above which all are forgotten, so that removed definitions do not occupy memory."""


class SharedNodes:
    """Nodes by content. Equal nodes become one object, which must not be changed."""

    def __init__(self, max_nodes: int = MAX_NODES) -> None:
        self._max_nodes = max_nodes
        self._by_content: dict[object, Any] = {}
        self._by_id: dict[int, Any] = {}
        self._compiled: dict[tuple[str, int], tuple[Schema, Any]] = {}

    def __len__(self) -> int:
        return len(self._by_content)

    def share(self, schema: Schema) -> dict[str, Any]:
        """Return an equal schema that consists of shared nodes."""
        if len(self._by_content) > self._max_nodes:
            self._by_content.clear()
            self._by_id.clear()
            self._compiled.clear()
        shared: dict[str, Any] = self._share(schema)
        return shared

    def _share(self, value: Any) -> Any:
        node: Any
        if isinstance(value, dict):
            node = {key: self._share(inner) for key, inner in value.items()}
            content: object = (dict, *((key, _identity(each)) for key, each in node.items()))
        elif isinstance(value, list):
            node = [self._share(inner) for inner in value]
            content = (list, *map(_identity, node))
        else:
            return value
        # The content names inner nodes by id; the stored node keeps them alive.
        node = self._by_content.setdefault(content, node)
        self._by_id[id(node)] = node
        return node

    def compiled(self, name: str, schema: Schema, compile_node: Callable[[Schema], R]) -> R:
        """Return the result of *compile_node*, named *name*, for *schema*; once per shared node."""
        if self._by_id.get(id(schema)) is not schema:
            return compile_node(schema)
        found = self._compiled.get((name, id(schema)))
        if found is None or found[0] is not schema:
            found = (schema, compile_node(schema))
            self._compiled[name, id(schema)] = found
        result: R = found[1]
        return result


def _identity(value: Any) -> object:
    """Return what distinguishes a value: Python takes True for 1, and 1 for 1.0."""
    return id(value) if isinstance(value, dict | list) else (type(value), value)


SHARED = SharedNodes()
"""The nodes of all definitions of the process."""
