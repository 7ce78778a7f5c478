"""What operations refer to: a server, the jobs of one kind, one job, one queue."""

from collections.abc import Mapping
from dataclasses import dataclass

from ...wire.jobs import KINDS
from ..calls import Session
from ..requests import QueryValue, check_name, path


@dataclass(frozen=True, slots=True)
class Server:
    """The REST API as a whole."""

    session: Session

    def namespace(self, given: str | None) -> str:
        """Return *given*, or the namespace of the session."""
        return check_name("namespace", self.session.namespace if given is None else given)

    def inside(self, namespace: str | None, *, all_namespaces: bool) -> tuple[str, ...]:
        """Return the segments of paths that select one namespace; none for all of them.

        Raises:
            ValueError: both a namespace and all are asked for.
        """
        if all_namespaces and namespace is not None:
            raise ValueError("give either a namespace or all_namespaces")
        return () if all_namespaces else ("namespaces", self.namespace(namespace))


@dataclass(frozen=True, slots=True)
class Collection:
    """The objects of one kind."""

    server: Server
    kind: str
    """The plural in paths."""

    @property
    def session(self) -> Session:
        """The session of the server."""
        return self.server.session

    def of_kind(self, kind: str) -> "Collection":
        """Return the jobs of another kind.

        Raises:
            ValueError: there is no such kind.
        """
        if kind not in KINDS.values():
            raise ValueError(f"{kind!r} is no kind of jobs: {', '.join(KINDS.values())}")
        return Collection(self.server, kind)

    def path(
        self,
        *segments: str,
        namespace: str | None = None,
        query: Mapping[str, QueryValue] | None = None,
    ) -> str:
        """Return the path of the kind or below it; in a namespace, if one is given."""
        prefix = () if namespace is None else ("namespaces", namespace)
        return path(*prefix, self.kind, *segments, query=query)

    def list_path(
        self,
        *,
        namespace: str | None,
        all_namespaces: bool,
        query: Mapping[str, QueryValue] | None = None,
        prefix: tuple[str, ...] = (),
    ) -> str:
        """Return the path of all objects, in one namespace or in all.

        Raises:
            ValueError: both a namespace and all are asked for.
        """
        inside = self.server.inside(namespace, all_namespaces=all_namespaces)
        return path(*prefix, *inside, self.kind, query=query)

    def ref(self, key: str) -> "ObjectRef":
        """Return the object of a key: ``name``, or ``namespace/name``.

        Raises:
            ValueError: it is no such key.
        """
        namespace, slash, name = key.rpartition("/")
        return ObjectRef(
            collection=self,
            namespace=self.server.namespace(namespace if slash else None),
            name=check_name("name", name),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectRef:
    """One object in a namespace."""

    collection: Collection
    namespace: str
    name: str
    uid: str = ""
    """Empty if unknown."""

    @property
    def session(self) -> Session:
        """The session of the server."""
        return self.collection.session

    def path(self, *segments: str, query: Mapping[str, QueryValue] | None = None) -> str:
        """Return the path of the object or below it."""
        return self.collection.path(self.name, *segments, namespace=self.namespace, query=query)

    def __str__(self) -> str:
        return f"{self.collection.kind} {self.namespace}/{self.name}"
