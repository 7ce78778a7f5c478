"""RBAC: both servers decide the same from the same roles and bindings."""

import random
from pathlib import Path
from typing import Any

import pytest
from support.api_servers import RealServerFactory
from support.embedded_apiserver import RawResponse, Server, embedded_server
from support.examples import examples
from support.polling import wait_until_true

pytestmark = pytest.mark.process

Json = dict[str, Any]
RBAC = "rbac.authorization.k8s.io"
ROOT = f"/apis/{RBAC}/v1"
REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
RULES_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"

GROUPS = ("", "apps", RBAC, "*")
RESOURCES = ("pods", "pods/log", "*/log", "secrets", "*")
VERBS = ("get", "list", "create", "*")
NAMES = ("a", "b")
URLS = ("/metrics", "/logs/*", "/logs", "*")
USERS = ("jane", "joe", "system:serviceaccount:default:robot")
TEAMS = ("builders", "system:authenticated")


def _some(random_: random.Random, values: tuple[str, ...]) -> list[str]:
    return random_.sample(values, random_.randint(1, 2))


def _rule(random_: random.Random, *, urls: bool) -> Json:
    if urls and random_.random() < 0.3:
        return {"verbs": _some(random_, VERBS), "nonResourceURLs": _some(random_, URLS)}
    rule: Json = {
        "verbs": _some(random_, VERBS),
        "apiGroups": _some(random_, GROUPS),
        "resources": _some(random_, RESOURCES),
    }
    if random_.random() < 0.3:
        rule["resourceNames"] = _some(random_, NAMES)
    return rule


def _subject(random_: random.Random) -> Json:
    kind = random_.choice(("User", "Group", "ServiceAccount"))
    if kind == "ServiceAccount":
        return {"kind": kind, "name": "robot", "namespace": "default"}
    name = random_.choice(USERS[:2] if kind == "User" else TEAMS[:1])
    return {"kind": kind, "name": name, "apiGroup": RBAC}


def _policy(random_: random.Random) -> list[tuple[str, Json]]:
    """Roles and bindings with their collections; some bindings refer to no role."""
    created = []
    for plural, kind, scope in (("clusterroles", "ClusterRole", ""), ("roles", "Role", "default")):
        root = f"{ROOT}/namespaces/{scope}" if scope else ROOT
        for number in range(3):
            rules = [_rule(random_, urls=not scope) for _ in range(random_.randint(1, 3))]
            body = {"metadata": {"name": f"test-{number}"}, "rules": rules}
            created.append((f"{root}/{plural}", body))
        for number in range(3):
            role = random_.choice(("ClusterRole", kind))
            reference = {"apiGroup": RBAC, "kind": role, "name": f"test-{random_.randint(0, 3)}"}
            subjects = [_subject(random_) for _ in range(random_.randint(1, 2))]
            created.append(
                (
                    f"{root}/{plural.removesuffix('s')}bindings",
                    {
                        "metadata": {"name": f"test-{number}"},
                        "roleRef": reference,
                        "subjects": subjects,
                    },
                )
            )
    return created


def _question(random_: random.Random) -> Json:
    spec: Json = {"user": random_.choice(USERS), "groups": _some(random_, TEAMS)}
    verb = random_.choice(("get", "list", "create", "patch"))
    if random_.random() < 0.2:
        path = random_.choice(("/metrics", "/logs", "/logs/a", "/version", "/api/v1"))
        return {**spec, "nonResourceAttributes": {"verb": verb, "path": path}}
    attributes = {
        "verb": verb,
        "group": random_.choice(("", "apps")),
        "resource": random_.choice(("pods", "secrets", "things")),
        "subresource": random_.choice(("", "", "log")),
        "namespace": random_.choice(("", "default", "kube-system")),
        "name": random_.choice(("", "a", "b", "c")),
    }
    return {**spec, "resourceAttributes": attributes}


async def _ask(server: Server, spec: Json) -> Json:
    found = (await server.create(REVIEWS, {"spec": spec}))["status"]
    # Which of several rules is named depends on the order in which a server knows the bindings.
    return {"allowed": found["allowed"], "missing": sorted(_missing(found.get("reason", "")))}


def _missing(reason: str) -> list[str]:
    if "not found" not in reason:
        return []
    return reason.removeprefix("RBAC: ").strip("[]").split(", ")


async def _create_policy(server: Server, policy: list[tuple[str, Json]]) -> None:
    for path, body in policy:
        await server.create(path, body)
    # The real authorizer learns of roles and bindings one after the other.
    attributes = {"verb": "get", "resource": "pods", "name": "end"}
    rule = {"verbs": ["get"], "apiGroups": [""], "resources": ["pods"], "resourceNames": ["end"]}
    last = {"metadata": {"name": "test-end"}}
    reference = {"apiGroup": RBAC, "kind": "ClusterRole", "name": "test-end"}
    subjects = [{"apiGroup": RBAC, "kind": "User", "name": "end"}]
    role = {"namespace": "default"}
    await server.create(f"{ROOT}/clusterroles", {**last, "rules": [rule]})
    await server.create(
        f"{ROOT}/clusterrolebindings", {**last, "roleRef": reference, "subjects": subjects}
    )
    namespaced = {"metadata": {"name": "test-end"}, "rules": [{**rule, "resourceNames": ["own"]}]}
    await server.create(f"{ROOT}/namespaces/default/roles", namespaced)
    own = {**reference, "kind": "Role"}
    await server.create(
        f"{ROOT}/namespaces/default/rolebindings",
        {"metadata": {"name": "test-end"}, "roleRef": own, "subjects": subjects},
    )

    async def knows_all() -> bool:
        asked = (attributes, {**attributes, **role, "name": "own"})
        found = [await _ask(server, {"user": "end", "resourceAttributes": each}) for each in asked]
        return all(each["allowed"] for each in found)

    await wait_until_true(knows_all)


@pytest.mark.parametrize("seed", range(examples(4)))
async def test_decisions_on_random_rules_are_those_of_kube_apiserver(
    seed: int, real: RealServerFactory, tmp_path: Path
) -> None:
    random_ = random.Random(seed)
    policy = _policy(random_)
    questions = [_question(random_) for _ in range(150)]
    async with real.start(tmp_path) as theirs, embedded_server(tmp_path / "own") as ours:
        for server in (theirs, ours):
            await _create_policy(server, policy)
        allowed = 0
        for question in questions:
            expected = await _ask(theirs, question)
            assert await _ask(ours, question) == expected, (question, policy)
            allowed += expected["allowed"]
        assert 0 < allowed < len(questions)


REQUESTS = (
    ("GET", "/api/v1/namespaces/default/pods"),
    ("GET", "/api/v1/pods?watch=true"),
    ("GET", "/api/v1/pods?fieldSelector=metadata.name%3Da"),
    ("DELETE", "/api/v1/namespaces/default/pods?fieldSelector=metadata.name%3Da"),
    ("GET", "/api/v1/namespaces/default"),
    ("DELETE", "/api/v1/namespaces/default"),
    ("GET", "/api/v1/namespaces/default/pods/a/log"),
    ("PUT", "/apis/apps/v1/namespaces/default/deployments/d/status"),
    ("GET", "/apis/nothing.io/v1/things"),
    ("GET", "/metrics"),
    ("GET", "/healthz"),
    ("GET", "/healthz/ping"),
    ("GET", "/livez"),
    ("GET", "/version"),
    ("GET", "/api"),
    ("GET", "/apis/apps/v1"),
    ("GET", "/openapi/v3"),
    ("GET", "/nothing"),
)


def _shown(response: RawResponse) -> Any:
    return (response.status, response.body["message"] if response.status == 403 else None)


async def test_errors_of_denied_requests_are_those_of_kube_apiserver(
    real: RealServerFactory, tmp_path: Path
) -> None:
    async with real.start(tmp_path) as theirs, embedded_server(tmp_path / "own") as ours:
        for user in ("jane", "system:anonymous", "a<b>&c"):
            headers = {"Impersonate-User": user}
            for method, path in REQUESTS:
                expected, actual = [
                    _shown(await server.request(method, path, headers=headers))
                    for server in (theirs, ours)
                ]
                if expected[0] == 403 or actual[0] == 403:
                    assert actual == expected, (user, method, path)


async def _write_as_jane(server: Server) -> list[Any]:
    """What jane, who may write roles and bindings and read pods, is allowed to grant."""
    pods = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}
    roles = {"apiGroups": [RBAC], "resources": ["*"], "verbs": ["create", "update", "patch"]}
    bind = {
        "apiGroups": [RBAC],
        "resources": ["clusterroles"],
        "verbs": ["bind"],
        "resourceNames": ["view"],
    }
    policy: list[tuple[str, Json]] = [
        (f"{ROOT}/clusterroles", {"metadata": {"name": "jane"}, "rules": [pods, roles, bind]}),
        (
            f"{ROOT}/clusterrolebindings",
            {
                "metadata": {"name": "jane"},
                "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "jane"},
                "subjects": [{"apiGroup": RBAC, "kind": "User", "name": "jane"}],
            },
        ),
    ]
    await _create_policy(server, policy)
    own = f"{ROOT}/namespaces/default"
    secrets = {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "list"]}
    urls = {"nonResourceURLs": ["/metrics"], "verbs": ["get"]}
    selectors = {"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]}
    attempts: list[tuple[str, Json]] = [
        (f"{own}/roles", {"rules": [pods]}),
        (f"{own}/roles", {"rules": [pods, secrets]}),
        (f"{own}/roles", {"rules": [{**secrets, "resourceNames": ["a", "b"]}]}),
        (f"{own}/roles", {"rules": [{**pods, "resourceNames": ["a"]}]}),
        (f"{own}/roles", {"rules": [{**pods, "verbs": ["*"]}]}),
        (f"{ROOT}/clusterroles", {"rules": [urls]}),
        (f"{ROOT}/clusterroles", {"rules": [], "aggregationRule": selectors}),
        *(
            (f"{own}/rolebindings", _bound(role))
            for role in ("view", "jane", "none", "system:node")
        ),
        *((f"{ROOT}/clusterrolebindings", _bound(role)) for role in ("view", "cluster-admin")),
    ]
    found = []
    headers = {"Impersonate-User": "jane"}
    for number, (path, body) in enumerate(attempts):
        obj = {"metadata": {"name": f"attempt-{number}"}, **body}
        response = await server.request("POST", path, obj, headers=headers)
        found.append((response.status, response.body.get("message")))
    return found


def _bound(role: str) -> Json:
    return {
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": RBAC, "kind": "User", "name": "joe"}],
    }


async def test_grants_beyond_own_rights_are_refused_as_by_kube_apiserver(
    real: RealServerFactory, tmp_path: Path
) -> None:
    async with real.start(tmp_path) as theirs, embedded_server(tmp_path / "own") as ours:
        expected, actual = [await _write_as_jane(server) for server in (theirs, ours)]
    assert actual == expected
    assert {status for status, _ in expected} == {201, 403, 404}


async def test_rules_of_a_user_are_those_of_kube_apiserver(
    real: RealServerFactory, tmp_path: Path
) -> None:
    async with real.start(tmp_path) as theirs, embedded_server(tmp_path / "own") as ours:
        found = []
        for server in (theirs, ours):
            review = await server.request(
                "POST",
                RULES_REVIEWS,
                {"spec": {"namespace": "default"}},
                headers={"Impersonate-User": "jane"},
            )
            status = review.body["status"]
            found.append(
                {
                    kind: sorted(map(str, status[kind]))
                    for kind in ("resourceRules", "nonResourceRules")
                }
            )
    assert found[1] == found[0]
