"""Random writes of several managers to one object, for hypothesis."""

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from support.embedded_apiserver import MAPS, PODS
from support.field_ownership import APPLY, JSON_PATCH, MERGE, STRATEGIC, TYPED, Json, Write

MANAGERS = ("one", "two", "kubectl")
_LETTERS = ("a", "b", "c")
_DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
_SERVICES = "/api/v1/namespaces/default/services"
_JOBS = "/apis/batch.volcano.sh/v1alpha1/namespaces/default/jobs"

Strategy = st.SearchStrategy[Any]


def _some(fields: dict[str, Strategy]) -> Strategy:
    """Objects with some of *fields*."""
    return st.fixed_dictionaries({}, optional=fields)


_VALUES = st.sampled_from(("1", "2"))


def _texts(values: Strategy = _VALUES) -> Strategy:
    return st.dictionaries(st.sampled_from(_LETTERS), values, max_size=3)


def _subset(values: tuple[Any, ...], size: int = 3) -> Strategy:
    return st.lists(st.sampled_from(values), unique=True, max_size=size)


def _keyed(fields: dict[str, Strategy], *keys: str) -> Strategy:
    """Lists of items that differ in their keys."""

    def key(item: Json) -> tuple[str, ...]:
        return tuple(str(item.get(name, "")) for name in keys)

    return st.lists(_with(fields, *keys), unique_by=key, max_size=3)


def _with(fields: dict[str, Strategy], *needed: str) -> Strategy:
    required = {name: fields[name] for name in needed}
    optional = {name: each for name, each in fields.items() if name not in needed}
    return st.fixed_dictionaries(required, optional=optional)


_FREE = st.recursive(
    st.sampled_from((1, "x", True, None)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2), st.dictionaries(st.sampled_from(_LETTERS), inner, max_size=2)
    ),
    max_leaves=4,
)
_TYPED_SPEC = _some(
    {
        "replicas": st.integers(1, 2),
        "mode": st.sampled_from(("auto", "x")),
        "items": _keyed(
            {
                "name": st.sampled_from(_LETTERS),
                "protocol": st.sampled_from(("TCP", "UDP")),
                "value": st.integers(1, 2),
                "tags": _subset(_LETTERS),
            },
            "name",
        ),
        "set": _subset(_LETTERS),
        "list": st.lists(st.integers(1, 2), max_size=2),
        "map": _texts(),
        "whole": _texts(),
        "free": st.dictionaries(st.sampled_from(_LETTERS), _FREE, max_size=2),
        "any": st.one_of(st.integers(1, 2), st.lists(st.integers(1, 2), max_size=2), _texts()),
        "size": st.sampled_from((1, "1")),
    }
)
_TYPED_STATUS = _some({"phase": st.sampled_from(("x", "y")), "counts": _texts()})

_CONTAINER = _with(
    {
        "name": st.sampled_from(("a", "b")),
        "image": st.sampled_from(("one", "two")),
        "command": st.lists(st.sampled_from(_LETTERS), max_size=2),
        "env": _keyed(
            {"name": st.sampled_from(_LETTERS), "value": st.sampled_from(("1", "2"))}, "name"
        ),
        "ports": _keyed(
            {
                "containerPort": st.integers(80, 81),
                "protocol": st.sampled_from(("TCP", "UDP")),
                "name": st.sampled_from(("http", "dns")),
            },
            "containerPort",
        ),
        "resources": st.sampled_from(({}, {"requests": {"cpu": "1"}}, {"limits": {"cpu": "2"}})),
    },
    "name",
)
_CONTAINERS = st.lists(_CONTAINER, min_size=1, max_size=2, unique_by=lambda each: each["name"])
_CONDITIONS = _keyed(
    {
        "type": st.sampled_from(("Mine", "Yours")),
        "status": st.sampled_from(("True", "False")),
        "message": st.sampled_from(("m", "n")),
    },
    "type",
)


@dataclass(frozen=True, slots=True)
class RandomKind:
    """A kind with random contents."""

    api_version: str
    kind: str
    path: str
    """Of the collection."""

    content: Strategy
    """Fields of an object besides its metadata."""

    status: Strategy | None = None
    custom: bool = False
    annotated: bool = True
    """Whether its annotations may change."""

    def body(self, name: str, metadata: Json, content: Json) -> Json:
        head = {"apiVersion": self.api_version, "kind": self.kind}
        return {**head, "metadata": {"name": name, **metadata}, **content}


def _spec(spec: Strategy) -> Strategy:
    return _some({"spec": spec})


def _with_spec(spec: Strategy) -> Strategy:
    return st.fixed_dictionaries({"spec": spec})


_SELECTOR = {"matchLabels": {"app": "x"}}
KINDS = (
    RandomKind("v1", "ConfigMap", MAPS, _some({"data": _texts(), "binaryData": _texts(
        st.sampled_from(("YQ==", "Yg=="))), "immutable": st.just(False)})),
    RandomKind(
        "ownership.example.com/v1", "Typed", TYPED, _spec(_TYPED_SPEC), _TYPED_STATUS, custom=True
    ),
    RandomKind(
        "v1",
        "Pod",
        PODS,
        st.fixed_dictionaries(
            {
                "spec": st.fixed_dictionaries(
                    {
                        "automountServiceAccountToken": st.just(False),
                        "containers": st.lists(
                            st.fixed_dictionaries(
                                {"name": st.just("c"), "image": st.sampled_from(("one", "two"))}
                            ),
                            min_size=1,
                            max_size=1,
                        ),
                    },
                    optional={
                        "activeDeadlineSeconds": st.integers(5, 6),
                        "tolerations": st.just([{"key": "a", "operator": "Exists"}]),
                    },
                )
            }
        ),
        _some({"phase": st.sampled_from(("Running", "Failed")), "conditions": _CONDITIONS}),
    ),
    RandomKind(
        "v1",
        "Service",
        _SERVICES,
        _with_spec(
            st.fixed_dictionaries(
                {"clusterIP": st.just("None"), "selector": st.just({"app": "x"})},
                optional={
                    "ports": st.lists(
                        st.builds(
                            lambda port, more: {"name": f"p{port}", "port": port, **more},
                            st.integers(80, 82),
                            _some(
                                {"targetPort": st.integers(1, 2), "protocol": st.just("TCP")}
                            ),
                        ),
                        unique_by=lambda each: each["port"],
                        max_size=3,
                    ),
                    "externalName": st.just(""),
                    "publishNotReadyAddresses": st.booleans(),
                },
            )
        ),
    ),
    RandomKind(
        "apps/v1",
        "Deployment",
        _DEPLOYMENTS,
        st.fixed_dictionaries(
            {
                "spec": st.fixed_dictionaries(
                    {
                        "selector": st.just(_SELECTOR),
                        "template": st.fixed_dictionaries(
                            {
                                "metadata": st.just({"labels": {"app": "x"}}),
                                "spec": st.fixed_dictionaries({"containers": _CONTAINERS}),
                            }
                        ),
                    },
                    optional={"replicas": st.integers(1, 2), "paused": st.booleans()},
                )
            }
        ),
        _some({"replicas": st.integers(1, 2), "conditions": _CONDITIONS}),
        # They change the generation of Deployments on kube-apiserver only.
        annotated=False,
    ),
    RandomKind(
        "batch.volcano.sh/v1alpha1",
        "Job",
        _JOBS,
        _spec(
            _some(
                {
                    "minAvailable": st.integers(1, 2),
                    "queue": st.sampled_from(("default", "q")),
                    "plugins": st.sampled_from(({"env": []}, {"env": [], "svc": ["x"]}, {})),
                    "tasks": _keyed(
                        {
                            "name": st.sampled_from(_LETTERS),
                            "replicas": st.integers(1, 2),
                            "template": st.builds(
                                lambda containers: {"spec": {"containers": containers}},
                                _CONTAINERS,
                            ),
                        },
                        "name",
                    ),
                }
            )
        ),
        _some({"minAvailable": st.integers(1, 2), "state": st.just({"phase": "Pending"})}),
        custom=True,
    ),
)  # fmt: skip

# kube-apiserver stores empty metadata of a custom object, and the next write drops it.
_SOME_TEXTS = st.dictionaries(st.sampled_from(_LETTERS), _VALUES, min_size=1, max_size=3)
_METADATA = {
    "labels": _SOME_TEXTS,
    "annotations": _SOME_TEXTS,
    "finalizers": st.sampled_from((["ex.io/a"], ["ex.io/a", "ex.io/b"])),
}


def _metadata(kind: RandomKind) -> Strategy:
    fields = dict(_METADATA)
    if not kind.annotated:
        del fields["annotations"]
    return _some(fields)


@st.composite
def writes(draw: st.DrawFn, kind: RandomKind) -> Write:
    """One write; its paths have ``{name}`` for the object's name."""
    manager = draw(st.sampled_from(MANAGERS))
    verb = draw(st.sampled_from(("apply", "apply", "apply", "put", "merge", "strategic", "json")))
    of_status = kind.status is not None and draw(st.integers(0, 3)) == 0
    path = f"{kind.path}/{{name}}" + ("/status" if of_status else "")
    status = kind.status if of_status else None
    content = draw(kind.content) if status is None else {"status": draw(status)}
    body = kind.body("{name}", draw(_metadata(kind)), content)
    query = f"?fieldManager={manager}" + draw(st.sampled_from(("", "", "", "&dryRun=All")))
    if verb == "apply":
        force = draw(st.sampled_from(("", "&force=true", "&force=true")))
        return Write("PATCH", path + query + force, body, APPLY)
    if verb == "put":
        return Write("PUT", path + query, body, versioned=True)
    if verb == "json":
        return Write("PATCH", path + query, [_json_operation(draw, body)], JSON_PATCH)
    media = STRATEGIC if verb == "strategic" and not kind.custom else MERGE
    return Write("PATCH", path + query, body, media)


def _json_operation(draw: st.DrawFn, body: Json) -> Json:
    path: list[str] = []
    value: Any = body
    while isinstance(value, dict) and value and (len(path) < 2 or draw(st.booleans())):
        path.append(
            draw(st.sampled_from(sorted(value.keys() - {"apiVersion", "kind", "name"}) or ["name"]))
        )
        value = value.get(path[-1])
    verb = draw(st.sampled_from(("add", "remove")))
    return {"op": verb, "path": "/" + "/".join(path), "value": value}


@st.composite
def histories(draw: st.DrawFn) -> list[Write]:
    """Writes to one object of a kind."""
    kind = draw(st.sampled_from(KINDS))
    created = kind.body("{name}", draw(_metadata(kind)), draw(kind.content))
    create = Write("POST", f"{kind.path}?fieldManager=creator", created)
    apply = Write("PATCH", f"{kind.path}/{{name}}?fieldManager=one", created, APPLY)
    first = draw(st.sampled_from((create, apply)))
    return [first, *draw(st.lists(writes(kind), min_size=2, max_size=12))]
