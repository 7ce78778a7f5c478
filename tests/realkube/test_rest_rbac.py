"""The REST API with RBAC: writes have the caller's rights and name, and its own account only reads.

It runs with the ServiceAccount and the roles of the manifests.
"""

import html
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from support.impersonation import SELF_REVIEW
from support.manifests import MANIFESTS, NAMESPACE, Objects, kustomized
from support.polling import wait_until_true
from support.rbac import service_account
from support.realkube import (
    MASTERS,
    RealKube,
    RealKubeOptions,
    RealServer,
    require_realkube,
    server_view,
)
from support.rest import JOB, running_api, sqlite
from support.rest_routes import NAME, WriteRoute, stored_objects, write_routes

from batholith.api.identity.authentication import SecuritySettings
from batholith.api.pages.app import PagesSettings
from batholith.kube.client.client import Client
from batholith.kube.client.config import Credentials
from batholith.kube.client.identity import Identity
from batholith.model import crds
from batholith.model.names import (
    COMMANDS,
    CRONJOBS,
    JOB_NAME,
    JOB_NAMESPACE,
    JOBS,
    NAMESPACES,
    PODS,
    SERVICEACCOUNTS,
    Resource,
)

Json = dict[str, Any]

OWN_ACCOUNT = service_account("api")
EDITOR, UNPRIVILEGED = "editor", "unprivileged"
ROBOT = "system:serviceaccount:default:robot"
OWN_WRITES = {"tokenreviews", "subjectaccessreviews"}
"""What the account of the REST API may create: reviews, which change nothing."""

JOB_PATH = f"/v1/namespaces/default/jobs/{NAME}"
CRONJOB_PATH = f"/v1/namespaces/default/cronjobs/{NAME}"
AUDIENCE = "batholith-rest"

_RBAC = ("ClusterRole", "ClusterRoleBinding")
_PLURALS = {
    "ClusterRole": "clusterroles",
    "ClusterRoleBinding": "clusterrolebindings",
    "RoleBinding": "rolebindings",
}


@pytest.fixture(scope="module")
def kube(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealKube]:
    require_realkube()
    options = RealKubeOptions(
        users={"admin": MASTERS, EDITOR: ("team",), UNPRIVILEGED: ()},
        crds=(*crds.load(), *crds.load_training()),
        audit=True,
        # A Command's owner is a job whose finalizers the caller may not change.
        flags=("--enable-admission-plugins=OwnerReferencesPermissionEnforcement",),
    )
    with RealKube(tmp_path_factory.mktemp("kube"), options) as started:
        yield started


@dataclass
class Rest:
    """A REST API with the account of the manifests, and the cluster behind it."""

    server: RealServer
    session: aiohttp.ClientSession
    url: str

    async def call(self, user: str, method: str, path: str, body: object = None) -> tuple[int, Any]:
        token = self.server.tokens.get(user, user)
        headers = {"Authorization": f"Bearer {token}"}
        async with self.session.request(method, path, json=body, headers=headers) as response:
            if response.content_type == "text/plain":
                return response.status, await response.text()
            return response.status, await response.json(content_type=None)

    async def write_routes(self) -> list[WriteRoute]:
        async with self.session.get("/openapi.json") as response:
            return write_routes(await response.json())

    def writes(self, since: int = 0) -> list[tuple[str, str, str, int]]:
        """Writes of others than the test: by whom, as whom, of what, with which status."""
        return [
            (
                line["user"]["username"],
                line.get("impersonatedUser", {}).get("username", ""),
                f"{line['verb']} {line['objectRef']['resource']}",
                line["responseStatus"]["code"],
            )
            for line in self.server.kube.audit()[since:]
            if line["verb"] not in ("get", "list", "watch")
            and line["user"]["username"] not in ("admin", "system:apiserver")
            and line.get("objectRef", {}).get("resource", "") not in ("", *OWN_WRITES)
        ]


def rbac(name: str, group: str = "rbac.authorization.k8s.io") -> Resource:
    return Resource(group, "v1", name, "", namespaced=name == "rolebindings")


async def apply_roles(server: RealServer, found: Objects) -> None:
    """Create the RBAC objects of the manifests that do not exist."""
    for (kind, _, _), each in found.items():
        if kind in _RBAC:
            response = await server.request("POST", rbac(_PLURALS[kind]).path(), each)
            assert response.status in (201, 409), response.body


async def token_of(server: RealServer, namespace: str, name: str, *audiences: str) -> str:
    """A token of a ServiceAccount, which is created if it does not exist."""
    accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}
    assert (await server.request("POST", accounts, account)).status in (201, 409)
    spec = {"audiences": list(audiences)} if audiences else {}
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    created = await server.create(f"{accounts}/{name}/token", body)
    token: str = created["status"]["token"]
    return token


async def bind(
    server: RealServer, name: str, role: str, *subjects: Json, namespace: str = ""
) -> None:
    """Bind a ClusterRole, in one namespace or in all."""
    kind = "RoleBinding" if namespace else "ClusterRoleBinding"
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": name},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": role,
        },
        "subjects": subjects,
    }
    response = await server.request("POST", rbac(_PLURALS[kind]).path(namespace), binding)
    assert response.status in (201, 409), response.body


def account_subject(namespace: str, name: str) -> Json:
    return {"kind": "ServiceAccount", "name": name, "namespace": namespace}


async def prepare(server: RealServer, overlay: str) -> None:
    """Create roles, bindings and objects, unless another test has done it."""
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    assert (await server.request("POST", "/api/v1/namespaces", namespace)).status in (201, 409)
    await apply_roles(server, kustomized(MANIFESTS / overlay))
    editor = {"kind": "User", "name": EDITOR, "apiGroup": "rbac.authorization.k8s.io"}
    robot = account_subject("default", "robot")
    await bind(server, "editors", "vcjob-editor-role", editor, robot, namespace="default")
    for resource, obj in stored_objects():
        where = "default" if resource.namespaced else ""
        response = await server.request("POST", resource.path(where), obj)
        assert response.status in (201, 409), response.body


@asynccontextmanager
async def rest(
    kube: RealKube,
    tmp_path: Path,
    *,
    overlay: str = "base",
    account: str = "batholith-api",
    pages: PagesSettings | None = None,
    **security: Any,
) -> AsyncIterator[Rest]:
    """A REST API that runs as *account* of the manifests' namespace."""
    async with server_view(kube) as server:
        await prepare(server, overlay)
        token = await token_of(server, NAMESPACE, account)
        credentials = Credentials(server=server.url, ca_data=server.ca, token=token)
        async with (
            Client(credentials, user_agent="rest") as client,
            running_api(
                client, sqlite(tmp_path), security=SecuritySettings(**security), pages=pages
            ) as url,
            aiohttp.ClientSession(url) as session,
        ):
            yield Rest(server, session, url)


async def test_a_user_without_rights_is_forbidden_every_write_and_nothing_happens(
    kube: RealKube, tmp_path: Path
) -> None:
    async with rest(kube, tmp_path) as api:
        routes = await api.write_routes()
        assert len(routes) >= 3
        before = len(api.server.kube.audit())
        for route in routes:
            status, body = await api.call(UNPRIVILEGED, route.method, route.path, route.body)
            assert _is_forbidden(route, status, body), (route, status, body)
        await _all_written_down(api)
        written = api.writes(before)
        assert {each[0] for each in written} <= {UNPRIVILEGED}
        assert {each[3] for each in written} == {403}


async def test_jobs_are_shown_to_those_who_may_read_them(kube: RealKube, tmp_path: Path) -> None:
    """Also those that are answered from memory; the editor has rights in one namespace."""
    async with rest(kube, tmp_path) as api:
        for path in (
            "/v1/jobs",
            "/v1/batchjobs",
            "/v1/namespaces/default/jobs",
            "/v1/namespaces/default/pytorchjobs",
            JOB_PATH,
            f"{JOB_PATH}/manifest",
        ):
            assert (await api.call(UNPRIVILEGED, "GET", path))[0] == 403, path
        for path, status in (
            ("/v1/jobs", 403),
            ("/v1/namespaces/other/jobs", 403),
            ("/v1/namespaces/default/batchjobs", 403),
            ("/v1/namespaces/default/jobs", 200),
            (JOB_PATH, 200),
            (f"{JOB_PATH}/manifest", 200),
        ):
            assert (await api.call(EDITOR, "GET", path))[0] == status, path


async def test_pages_show_and_do_what_their_user_may_do(kube: RealKube, tmp_path: Path) -> None:
    """The editor has rights in one namespace."""
    async with rest(kube, tmp_path, pages=PagesSettings()) as api:

        async def visit(user: str) -> aiohttp.ClientSession:
            jar = aiohttp.CookieJar(unsafe=True)
            headers = {"Accept": "text/html", "Origin": api.url}
            browser = aiohttp.ClientSession(api.url, cookie_jar=jar, headers=headers)
            token = api.server.tokens[user]
            async with browser.post("/login", data={"token": token}) as response:
                assert response.status == 200
            return browser

        async with await visit(EDITOR) as browser:
            for path, status, text in (
                ("/jobs", 200, "cannot list jobs.batch.volcano.sh at the cluster scope"),
                ("/jobs?namespace=default", 200, f">{NAME}<"),
                (f"/jobs/default/jobs/{NAME}", 200, f"<h1>{NAME}</h1>"),
                (f"/jobs/default/batchjobs/{NAME}", 403, "cannot get"),
                ("/cluster", 403, "cannot list resource"),
            ):
                async with browser.get(path) as response:
                    content = html.unescape(await response.text())
                    assert (response.status, text in content) == (status, True), (path, content)
        before = len(api.server.kube.audit())
        form = {"kind": "jobs", "action": "suspend", "job": f"default/{NAME}"}
        async with await visit(UNPRIVILEGED) as browser:
            for path, data, text in (
                ("/jobs/commands", form, "cannot list jobs"),
                (f"/jobs/default/jobs/{NAME}/commands", {"action": "suspend"}, "cannot create"),
            ):
                async with browser.post(path, data=data) as response:
                    assert text in html.unescape(await response.text())
        await _all_written_down(api)
        assert api.writes(before) == []


def _is_forbidden(route: WriteRoute, status: int, body: Any) -> bool:
    """Whether the write was denied; of several targets, each of them."""
    if status == 200 and isinstance(body, Mapping) and "results" in body:
        return all((each["problem"] or {}).get("status") == 403 for each in body["results"])
    return status == 403


async def _all_written_down(api: Rest) -> None:
    """Wait until the audit log has a later request."""
    marker = "/api/v1/namespaces/default/configmaps/marker"
    await api.server.request("GET", marker)

    async def is_written() -> bool:
        return any(line["requestURI"] == marker for line in api.server.kube.audit()[-50:])

    await wait_until_true(is_written)


async def _write_all(api: Rest, user: str, suffix: str) -> None:
    """Suspend the job, suspend the CronJob, create a job of it."""
    for method, path, body, expected in (
        ("POST", f"{JOB_PATH}/commands", {"action": "suspend"}, 202),
        ("PATCH", CRONJOB_PATH, {"suspend": True}, 200),
        ("POST", f"{CRONJOB_PATH}/jobs", {"name": f"manual-{suffix}"}, 201),
    ):
        status, response = await api.call(user, method, path, body)
        assert status == expected, response


EXPECTED = [("create commands", 201), ("patch cronjobs", 200), ("create jobs", 201)]


async def test_writes_of_a_user_are_recorded_under_the_user(kube: RealKube, tmp_path: Path) -> None:
    async with rest(kube, tmp_path) as api:
        before = len(api.server.kube.audit())
        await _write_all(api, EDITOR, "editor")
        await _all_written_down(api)
        assert api.writes(before) == [(EDITOR, "", what, status) for what, status in EXPECTED]


async def test_impersonated_writes_are_recorded_under_the_user(
    kube: RealKube, tmp_path: Path
) -> None:
    """A token for the audience of the REST API is not valid at the API server."""
    async with rest(
        kube,
        tmp_path,
        overlay="overlays/rest-impersonation",
        audiences=(AUDIENCE,),
        impersonate=True,
    ) as api:
        token = await token_of(api.server, "default", "robot", AUDIENCE)
        direct = await api.server.request("GET", JOBS.path("default"), token=token)
        assert direct.status == 401
        before = len(api.server.kube.audit())
        await _write_all(api, token, "robot")
        other = await token_of(api.server, "default", "robot")
        assert (await api.call(other, "GET", JOB_PATH))[0] == 401
        await _all_written_down(api)
        assert api.writes(before) == [
            (OWN_ACCOUNT, ROBOT, what, status) for what, status in EXPECTED
        ]
        [line] = [
            line
            for line in api.server.kube.audit()[before:]
            if line.get("objectRef", {}).get("resource") == "commands" and line["verb"] == "create"
        ]
        shown = line["impersonatedUser"]
        assert "system:serviceaccounts:default" in shown["groups"]
        assert shown["uid"]
        assert "authentication.kubernetes.io/credential-id" in shown["extra"]


async def test_impersonated_users_have_no_more_rights_than_they_have(
    kube: RealKube, tmp_path: Path
) -> None:
    async with rest(
        kube,
        tmp_path,
        overlay="overlays/rest-impersonation",
        audiences=(AUDIENCE,),
        impersonate=True,
    ) as api:
        token = await token_of(api.server, "default", "unprivileged", AUDIENCE)
        for route in await api.write_routes():
            status, body = await api.call(token, route.method, route.path, route.body)
            assert _is_forbidden(route, status, body), (route, status, body)


async def test_without_the_right_to_impersonate_nothing_is_written(
    kube: RealKube, tmp_path: Path
) -> None:
    async with server_view(kube) as server:
        await prepare(server, "base")
        second = account_subject(NAMESPACE, "second")
        await bind(server, "second", "batholith-api", second)
    async with rest(
        kube, tmp_path, account="second", audiences=(AUDIENCE,), impersonate=True
    ) as api:
        token = await token_of(api.server, "default", "robot", AUDIENCE)
        before = len(api.server.kube.audit())
        status, problem = await api.call(token, "PATCH", CRONJOB_PATH, {"suspend": True})
        assert status == 502
        assert "may not impersonate" in problem["detail"]
        await _all_written_down(api)
        assert {each[3] for each in api.writes(before)} == {403}


async def test_admission_sees_the_user(kube: RealKube, tmp_path: Path) -> None:
    """A policy denies the editor what RBAC allows; a quota counts its jobs."""
    async with rest(kube, tmp_path) as api:

        async def is_denied() -> bool:
            body = {"action": "restart"}
            status, problem = await api.call(EDITOR, "POST", f"{JOB_PATH}/commands", body)
            return status in (403, 422) and "not by the editor" in problem["detail"]

        async def exceeds() -> bool:
            status, problem = await api.call(EDITOR, "POST", f"{CRONJOB_PATH}/jobs")
            return status == 403 and "exceeded quota" in problem["detail"]

        async with _no_commands_of(api.server, EDITOR):
            await wait_until_true(is_denied)
        async with _exhausted_quota(api.server):
            await wait_until_true(exceeds)


@asynccontextmanager
async def _no_commands_of(server: RealServer, user: str) -> AsyncIterator[None]:
    group = "admissionregistration.k8s.io"
    rule = {
        "apiGroups": ["bus.volcano.sh"],
        "apiVersions": ["*"],
        "operations": ["CREATE"],
        "resources": ["commands"],
    }
    validation = {
        "expression": f"request.userInfo.username != '{user}'",
        "message": "not by the editor",
    }
    created = []
    for plural, kind, spec in (
        (
            "validatingadmissionpolicies",
            "ValidatingAdmissionPolicy",
            {"matchConstraints": {"resourceRules": [rule]}, "validations": [validation]},
        ),
        (
            "validatingadmissionpolicybindings",
            "ValidatingAdmissionPolicyBinding",
            {"policyName": "no-commands", "validationActions": ["Deny"]},
        ),
    ):
        body = {"apiVersion": f"{group}/v1", "kind": kind, "metadata": {"name": "no-commands"}}
        await server.create(f"/apis/{group}/v1/{plural}", body | {"spec": spec})
        created.append(f"/apis/{group}/v1/{plural}/no-commands")
    yield
    for path in created:
        assert (await server.request("DELETE", path)).status == 200

    async def is_permitted() -> bool:
        target = {"apiVersion": JOBS.api_version, "kind": "Job", "name": "train", "uid": "u"}
        body = {
            "apiVersion": COMMANDS.api_version,
            "kind": COMMANDS.kind,
            "metadata": {"name": "again"},
            "action": "RestartJob",
            "target": target,
        }
        at, headers = f"{COMMANDS.path('default')}?dryRun=All", {"Impersonate-User": user}
        return (await server.request("POST", at, body, headers=headers)).status == 201

    await wait_until_true(is_permitted)  # the server evaluates a deleted policy for a while


@asynccontextmanager
async def _exhausted_quota(server: RealServer) -> AsyncIterator[None]:
    """Create a quota that is used up; no controller writes its status here."""
    path = "/api/v1/namespaces/default/resourcequotas"
    hard = {f"count/{JOBS.plural}.{JOBS.group}": "1"}
    body: Json = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"}}
    created = await server.create(path, body | {"spec": {"hard": hard}})
    status = created | {"status": {"hard": hard, "used": hard}}
    response = await server.request("PUT", f"{path}/few/status", status)
    assert response.status == 200, response.body
    yield
    assert (await server.request("DELETE", f"{path}/few")).status == 200


async def test_our_account_may_not_write(kube: RealKube, tmp_path: Path) -> None:
    async with rest(kube, tmp_path) as api:
        token = await token_of(api.server, NAMESPACE, "batholith-api")
        for resource in (JOBS, CRONJOBS):
            for method, path in (
                ("POST", resource.path("default")),
                ("DELETE", resource.path("default", NAME)),
            ):
                response = await api.server.request(method, path, JOB, token=token)
                assert response.status == 403, response.body


async def test_a_token_is_not_outvoted_by_the_certificate_of_our_account(kube: RealKube) -> None:
    """kube-apiserver authenticates by a client certificate in preference to a token."""
    async with server_view(kube) as server:
        credentials = Credentials(
            server=server.url,
            ca_data=server.ca,
            cert_file=str(kube.pki.client.certificate),
            key_file=str(kube.pki.client.key),
        )
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        async with Client(credentials, user_agent="rest") as own:
            names = []
            for client in (own, own.acting_as(Identity.bearer(kube.tokens[EDITOR])), own):
                found = await client.post(SELF_REVIEW, review, view=dict)
                names.append(found["status"]["userInfo"]["username"])
        assert names[1] == EDITOR
        assert names[0] == names[2] != EDITOR


READERS = "readers"
"""Namespace in which a user without other rights gets those to read."""


async def _grant(server: RealServer, name: str, rules: Sequence[tuple[str, str, str]]) -> None:
    """Grant the unprivileged user verbs on resources, given with their group."""
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": name},
        "rules": [
            {"apiGroups": [group], "resources": [resource], "verbs": verbs.split()}
            for group, resource, verbs in rules
        ],
    }
    await server.create(rbac("clusterroles").path(), role)
    user = {"kind": "User", "name": UNPRIVILEGED, "apiGroup": "rbac.authorization.k8s.io"}
    await bind(server, name, name, user, namespace=READERS)


async def test_details_of_a_job_need_the_rights_to_read_them(
    kube: RealKube, tmp_path: Path
) -> None:
    """As with kubectl: pods, their logs, events and PodGroups each for themselves."""
    async with rest(kube, tmp_path) as api:
        server = api.server
        await server.create(NAMESPACES.path(), {"metadata": {"name": READERS}})
        job = await server.create(JOBS.path(READERS), JOB)
        uid = job["metadata"]["uid"]
        owner = {"apiVersion": JOBS.api_version, "kind": "Job", "name": "train", "uid": uid}
        labels = {JOB_NAME: "train", JOB_NAMESPACE: READERS}
        meta = {"name": "train-t-0", "labels": labels, "ownerReferences": [owner]}
        spec = {"containers": [{"name": "c", "image": "i"}], "nodeName": "none"}
        account = {"metadata": {"name": "default"}}
        response = await server.request("POST", SERVICEACCOUNTS.path(READERS), account)
        assert response.status in (201, 409)
        await server.create(PODS.path(READERS), {"metadata": meta, "spec": spec})
        path = f"/v1/namespaces/{READERS}/jobs/train"
        reads = ("pods", "pods/train-t-0/log", "logs", "events", "timeline", "why")

        async def statuses() -> dict[str, int]:
            return {
                each: (await api.call(UNPRIVILEGED, "GET", f"{path}/{each}"))[0] for each in reads
            }

        assert set((await statuses()).values()) == {403}
        for other in ("queues", "queues/train", "queues/train/usage", "podgroups"):
            assert (await api.call(UNPRIVILEGED, "GET", f"/v1/{other}"))[0] == 403
        await _grant(server, "jobs", [("batch.volcano.sh", "jobs", "get")])

        async def is_granted(expected: Mapping[str, int]) -> bool:
            wanted = {**dict.fromkeys(reads, 403), **expected}
            return bool(await statuses() == wanted)

        await wait_until_true(lambda: is_granted({"timeline": 200, "why": 200}))
        await _grant(server, "pods", [("", "pods", "get list")])
        await wait_until_true(
            lambda: is_granted({"timeline": 200, "why": 200, "pods": 200, "logs": 200})
        )
        await _grant(server, "events", [("", "events", "list"), ("", "pods/log", "get")])
        expected = dict.fromkeys(reads, 200) | {"pods/train-t-0/log": 404}  # there is no such node
        await wait_until_true(lambda: is_granted(expected))


async def test_a_command_that_is_deleted_while_no_replica_runs_is_looked_up(
    kube: RealKube, tmp_path: Path
) -> None:
    """With the rights of the account to get Commands and jobs, which nothing else uses."""
    async with rest(kube, tmp_path) as api:
        before = len(api.server.kube.audit())
        body = {"action": "suspend"}
        status, command = await api.call(EDITOR, "POST", f"{JOB_PATH}/commands", body)
        assert status == 202, command
        commands = (await api.server.get(COMMANDS.path("default")))["items"]
        names = [each["metadata"]["name"] for each in commands]
        [name] = [name for name in names if command["id"][:8] in name]
    async with server_view(kube) as server:
        assert (await server.request("DELETE", COMMANDS.path("default", name))).status == 200
    async with rest(kube, tmp_path) as api:

        async def is_settled() -> bool:
            at = f"{JOB_PATH}/commands/{command['id']}"
            return (await api.call(EDITOR, "GET", at))[1]["state"] in ("Ignored", "Unknown")

        await wait_until_true(is_settled)
        await _all_written_down(api)
        account = service_account("api")
        used = {
            (line["objectRef"]["resource"], line["responseStatus"]["code"])
            for line in api.server.kube.audit()[before:]
            if line["user"]["username"] == account and line["verb"] == "get" and "objectRef" in line
        }
    assert {("commands", 404), ("jobs", 200)} <= used
