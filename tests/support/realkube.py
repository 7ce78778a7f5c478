"""A real kube-apiserver with its etcd for tests: as a process, on free ports, in a fresh directory.

`RealKube` is the processes; they are started without a loop, so that one may serve many tests.
`real_server` is a test's view of one, with the surface of the embedded server in
`support.embedded_apiserver`. The programs are built by `tests/realkube/build`, or are in the
directory of ``BATHOLITH_ASSETS``.
"""

import base64
import csv
import http.client
import io
import json
import os
import random
import secrets
import shutil
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Self

import aiohttp
import msgspec
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from support.embedded_apiserver import DISCOVERY, Server, is_fully_discovered
from support.polling import wait_until_true

from batholith.local.agent.runtime.process_id import die_with_parent
from batholith.local.apiserver.aggregation.client import (
    EXTRA_PREFIX,
    GROUP_HEADER,
    UID_HEADER,
    USER_HEADER,
)
from batholith.local.supervisor import kubeconfig, pki
from batholith.model.names import CRDS, DEVICETAINTRULES, NATIVE_PODGROUPS
from batholith.model.node_identity import FRONT_PROXY_CLIENT

GANG_GATES = ",".join(
    f"{gate}=true"
    for gate in (
        "GenericWorkload",
        "GangScheduling",
        "WorkloadAwarePreemption",
        "TopologyAwareWorkloadScheduling",
    )
)
"""The feature gates of Kubernetes' own gangs, which the embedded API server serves, too."""

OTHER_GATES = ",".join(
    f"{gate}=true"
    for gate in (
        "DRADeviceTaintRules",
        "DRAWorkloadResourceClaims",
        "TaintTolerationComparisonOperators",
    )
)
"""Gates of kinds and fields that the embedded API server has, too."""

Json = dict[str, Any]

BUILD = Path(__file__).parents[1] / "realkube" / "build"
MASTERS = ("system:masters",)
USERS: Mapping[str, Sequence[str]] = dict.fromkeys(
    ("admin", "controllers", "scheduler", "agent", "node-extensions", "api"), MASTERS
)
"""Who has a token, and the groups of each."""

CONTROLLERS = (
    "garbagecollector",
    "namespace",
    "serviceaccount",
    "root-ca-cert-publisher",
    "disruption",
    "resourcequota",
    "persistentvolumeclaim-protection-controller",
    "podgroup-protection-controller",
    "volumeattributesclass-protection-controller",
)
WORKLOADS = (*CONTROLLERS, "replicaset", "deployment", "statefulset", "job", "podgc")
_PRESERVED_KEYS = ("/registry/masterleases/", "/registry/leases/kube-system/")
"""Keys that the server itself writes now and again."""

_CRD_KEYS = "/registry/apiextensions.k8s.io/customresourcedefinitions/"

_RESET_PASSES = 10
"""How often a store is looked over at most until nothing is left to be undone."""

_AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "ResponseStarted"],
}


def assets() -> Path | None:
    """The directory of etcd and the programs of Kubernetes, if there is one."""
    given = os.environ.get("BATHOLITH_ASSETS")
    if given:
        return Path(given)
    result = subprocess.run([BUILD, "--where"], check=True, capture_output=True, text=True)
    directory = Path(result.stdout.strip())
    return directory if directory.is_dir() else None


def require_realkube() -> Path:
    """Skip without the programs; fail instead where ``BATHOLITH_REQUIRE`` demands them."""
    found = assets()
    if found is not None:
        return found
    if "realkube" in os.environ.get("BATHOLITH_REQUIRE", "").split(","):
        pytest.fail("kube-apiserver is required and not built: run tests/realkube/build")
    pytest.skip("kube-apiserver is not built: tests/realkube/build builds it in some minutes")


@dataclass(frozen=True, slots=True, kw_only=True)
class RealKubeOptions:
    """How a real server is to be."""

    users: Mapping[str, Sequence[str]] = field(default_factory=lambda: USERS)
    """User name to groups; each gets a token. ``admin`` must be one of them."""

    controllers: Sequence[str] = ()
    """Controllers that the controller manager runs; none: it is not started."""

    crds: Sequence[Json] = ()
    """Definitions that are served before the controllers start, which look for new ones seldom."""

    audit: bool = False
    """Whether each request is written to the audit log."""

    audit_rules: Sequence[Json] = ()
    """Rules of the audit policy before the one that writes down everything but bodies."""

    durable: bool = False
    """Whether etcd waits for the disk; only tests that cut the power need it."""

    flags: Sequence[str] = ()
    """More flags of kube-apiserver."""


_established: dict[bytes, bytes] = {}
"""What a server has stored of each definition (its JSON) once it was served."""


class RealKube:
    """The processes of a real API server; a context manager."""

    shared: ClassVar[list[Self]] = []
    """Those of fixtures of the session, which start again when a test needs them."""

    def __init__(self, directory: Path, options: RealKubeOptions | None = None) -> None:
        found = require_realkube()
        self.directory = directory
        self.options = options or RealKubeOptions()
        self.tokens = {user: secrets.token_hex(16) for user in self.options.users}
        self._assets = found
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._audit_size = 0
        self._audit_lines: list[Json] = []
        self._snapshot: dict[bytes, bytes] = {}
        self._snapshot_versions: dict[bytes, str] = {}

    def __enter__(self) -> Self:
        self.directory.mkdir(parents=True, exist_ok=True)
        self._prepare()
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def is_running(self) -> bool:
        return bool(self._running)

    def kubeconfig_of(self, user: str) -> Path:
        """A kubeconfig of one user."""
        path = self.directory / f"{user}.kubeconfig"
        token = self.tokens[user]
        access = kubeconfig.ClusterAccess(
            server=self.url, ca=self.pki.ca_data, user=user, token=token
        )
        kubeconfig.write(path, access)
        return path

    def audit(self) -> list[Json]:
        """Return the audit log's complete lines, of which the last call has read the first ones."""
        with (self.directory / "audit.log").open("rb") as file:
            file.seek(self._audit_size)
            content = file.read()
        complete = content[: content.rfind(b"\n") + 1]
        self._audit_size += len(complete)
        self._audit_lines += map(msgspec.json.decode, complete.splitlines())
        return list(self._audit_lines)

    def start(self) -> None:
        """Start everything, with what was stored if it was started before."""
        restarted = (self.directory / "etcd").exists()
        self._start_on_free_ports(with_definitions=not restarted)
        if not restarted:
            self._create_definitions(self.options.crds)
        if self.options.controllers:
            self._start_configured_manager()

    def start_api(self) -> None:
        """Start the API server on its port, and wait until it is ready."""
        self._spawn("kube-apiserver", *self._api_flags())
        try:
            self._wait_ready("kube-apiserver", lambda: self.request_json("GET", "/readyz") == 200)
        except TimeoutError as error:
            raise TimeoutError(
                f"{self.request_text('GET', '/readyz?verbose')[1]}\n{error}"
            ) from None

    def pid(self, program: str) -> int:
        """Return the process id of a running program."""
        return self._running[program].pid

    def kill_api(self) -> None:
        """``kill -9`` of the API server; etcd stays, and of the audit log what is whole."""
        self._kill("kube-apiserver")
        if self.options.audit:
            log = self.directory / "audit.log"
            os.truncate(log, log.read_bytes().rfind(b"\n") + 1)

    def suspend(self, program: str) -> None:
        """Send SIGSTOP: requests to the program get no response."""
        process = self._running[program]
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self, program: str) -> None:
        """Send SIGCONT."""
        self._running[program].send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """Kill everything; `start` continues with what is stored."""
        for program in reversed(list(self._running)):
            self._kill(program)

    def log(self, program: str) -> str:
        """What a program wrote to its log, for a failed test."""
        return (self.directory / f"{program}.log").read_text(errors="replace")

    # One server for many tests.

    def snapshot(self) -> None:
        """Record what is stored now, for `restore`."""
        kept = self._stored()
        self._snapshot = {key: base64.b64decode(each["value"]) for key, each in kept.items()}
        self._snapshot_versions = {key: each["mod_revision"] for key, each in kept.items()}

    def restore(self) -> set[bytes]:
        """Restore the store to the last `snapshot`; watchers see the changes.

        Writes that arrive during it, e.g. of a slow controller, are undone as well. Returns the
        keys that were written.
        """
        touched: set[bytes] = set()
        for _ in range(_RESET_PASSES):
            found = self._restore_once()
            touched |= found
            if not found:
                break
        return touched

    def _restore_once(self) -> set[bytes]:
        now = self._versions()
        new = now.keys() - self._snapshot.keys()
        for key in new:
            self.etcd("deleterange", key=_base64(key))
        changed = [key for key in self._snapshot if now.get(key) != self._snapshot_versions[key]]
        for key in changed:
            result = self.etcd("put", key=_base64(key), value=_base64(self._snapshot[key]))
            self._snapshot_versions[key] = result["header"]["revision"]
        return {*new, *changed}

    def _versions(self) -> dict[bytes, str]:
        return {key: each["mod_revision"] for key, each in self._stored(keys_only=True).items()}

    def _stored(self, *, keys_only: bool = False) -> dict[bytes, Json]:
        content = {"key": _base64(b"/registry/"), "range_end": _base64(b"/registry0")}
        found = self.etcd("range", **content, keys_only=keys_only).get("kvs", [])
        stored = {base64.b64decode(each["key"]): each for each in found}
        lasting = tuple(prefix.encode() for prefix in _PRESERVED_KEYS)
        return {key: each for key, each in stored.items() if not key.startswith(lasting)}

    def etcd(self, verb: str, **body: object) -> Json:
        """Ask etcd's JSON gateway."""
        with closing(
            http.client.HTTPConnection("127.0.0.1", self._etcd_port, timeout=60)
        ) as connection:
            connection.request("POST", f"/v3/kv/{verb}", json.dumps(body))
            response = connection.getresponse()
            result: Json = json.loads(response.read())
        assert response.status == 200, result
        return result

    # Starting.

    def _prepare(self) -> None:
        self.pki = pki.ensure(self.directory / "pki")
        rows = io.StringIO()
        for user, groups in self.options.users.items():
            csv.writer(rows).writerow([self.tokens[user], user, user, ",".join(groups)])
        _private(self.directory / "tokens.csv", rows.getvalue())
        _private(self.directory / "accounts.key", _signing_key())
        rules = [*self.options.audit_rules, {"level": "Metadata"}]
        policy = json.dumps(_AUDIT_POLICY | {"rules": rules})
        (self.directory / "audit-policy.json").write_text(policy)

    def _start_on_free_ports(self, *, with_definitions: bool) -> None:
        for last in (False, False, True):
            self.port, self._etcd_port, peer, self._manager_port = free_ports(4)
            try:
                self._start_etcd(peer)
                if with_definitions:
                    self._store_definitions()
                self.start_api()
            except ChildProcessError:  # most likely another process took a port
                self.stop()
                if with_definitions:
                    shutil.rmtree(self.directory / "etcd", ignore_errors=True)
                if last:
                    raise
            else:
                return

    def _start_etcd(self, peer_port: int) -> None:
        client, peer = (f"http://127.0.0.1:{port}" for port in (self._etcd_port, peer_port))
        flags = [
            f"--data-dir={self.directory / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--log-level=error",
            "--quota-backend-bytes=8589934592",
        ]
        self._spawn("etcd", *flags, *([] if self.options.durable else ["--unsafe-no-fsync"]))
        self._wait_ready("etcd", lambda: bool(self.etcd("range", key=_base64(b"none"))))

    def _api_flags(self) -> list[str]:
        keys = self.pki
        flags = [
            f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--secure-port={self.port}",
            f"--cert-dir={self.directory}",
            f"--tls-cert-file={keys.server.certificate}",
            f"--tls-private-key-file={keys.server.key}",
            f"--client-ca-file={keys.ca}",
            f"--kubelet-certificate-authority={keys.ca}",
            f"--kubelet-client-certificate={keys.client.certificate}",
            f"--kubelet-client-key={keys.client.key}",
            "--kubelet-preferred-address-types=InternalIP,Hostname",
            f"--requestheader-client-ca-file={keys.front_proxy_ca}",
            f"--requestheader-allowed-names={FRONT_PROXY_CLIENT}",
            f"--requestheader-username-headers={USER_HEADER}",
            f"--requestheader-uid-headers={UID_HEADER}",
            f"--requestheader-group-headers={GROUP_HEADER}",
            f"--requestheader-extra-headers-prefix={EXTRA_PREFIX}",
            f"--proxy-client-cert-file={keys.front_proxy_client.certificate}",
            f"--proxy-client-key-file={keys.front_proxy_client.key}",
            "--service-cluster-ip-range=10.96.0.0/16",
            f"--token-auth-file={self.directory / 'tokens.csv'}",
            "--authorization-mode=Node,RBAC",
            f"--feature-gates={GANG_GATES},{OTHER_GATES}",
            f"--runtime-config={NATIVE_PODGROUPS.api_version}=true,"
            f"{DEVICETAINTRULES.api_version}/{DEVICETAINTRULES.plural}=true",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-signing-key-file={self.directory / 'accounts.key'}",
            f"--service-account-key-file={self.directory / 'accounts.key'}",
            "--max-requests-inflight=20000",
            "--max-mutating-requests-inflight=20000",
            "--shutdown-delay-duration=0",
        ]
        if not self.options.controllers:
            # No controller creates the service accounts that pods would get.
            flags.append("--disable-admission-plugins=ServiceAccount")
        if self.options.audit:
            flags.append(f"--audit-policy-file={self.directory / 'audit-policy.json'}")
            flags.append(f"--audit-log-path={self.directory / 'audit.log'}")
        return [*flags, *self.options.flags]

    def _store_definitions(self) -> None:
        """Store the definitions that another server has served already.

        A server that finds them at its start uses a third less processor time than one that gets
        them one after the other, and builds its OpenAPI document again for each.
        """
        for definition in self.options.crds:
            if content := _established.get(msgspec.json.encode(definition)):
                self.etcd("put", key=_crd_key(definition), value=_base64(content))

    def _create_definitions(self, definitions: Sequence[Json]) -> None:
        new = [each for each in definitions if msgspec.json.encode(each) not in _established]
        for definition in new:
            assert self.request_json("POST", CRDS.path(), definition) == 201
        for definition in definitions:
            spec = definition["spec"]
            served = next(each["name"] for each in spec["versions"] if each["served"])
            path = f"/apis/{spec['group']}/{served}/{spec['names']['plural']}"
            self.wait_status(200, path)

        def are_established() -> bool:
            document = json.loads(self.request_text("GET", "/apis", accept=DISCOVERY)[1])
            return all(is_fully_discovered(document, each["spec"]) for each in definitions)

        self._wait_ready("kube-apiserver", are_established)
        for definition in new:
            (found,) = self.etcd("range", key=_crd_key(definition))["kvs"]
            _established[msgspec.json.encode(definition)] = base64.b64decode(found["value"])

    def _start_configured_manager(self) -> None:
        self.start_manager(self.options.controllers)
        path = "/api/v1/namespaces/default/serviceaccounts/default"
        if "serviceaccount" in self.options.controllers:
            self._wait_ready(
                "kube-controller-manager", lambda: self.request_json("GET", path) == 200
            )

    def start_manager(
        self, controllers: Sequence[str], *flags: str, user: str = "admin"
    ) -> subprocess.Popen[bytes]:
        """Start kube-controller-manager, under *user*; does not wait until it is ready."""
        kubeconfig = self.kubeconfig_of(user)
        return self._spawn(
            "kube-controller-manager",
            f"--kubeconfig={kubeconfig}",
            f"--authentication-kubeconfig={kubeconfig}",
            f"--authorization-kubeconfig={kubeconfig}",
            "--authentication-skip-lookup=true",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
            f"--secure-port={self._manager_port}",
            f"--service-account-private-key-file={self.directory / 'accounts.key'}",
            f"--root-ca-file={self.pki.ca}",
            "--kube-api-qps=5000",
            "--kube-api-burst=5000",
            f"--controllers={','.join(controllers)}",
            "--feature-gates=GenericWorkload=true,DRADeviceTaintRules=true",
            *flags,
        )

    def start_scheduler(self, *flags: str, user: str = "admin") -> subprocess.Popen[bytes]:
        """Start kube-scheduler, under *user*; does not wait until it is ready."""
        kubeconfig = self.kubeconfig_of(user)
        (port,) = free_ports(1)
        return self._spawn(
            "kube-scheduler",
            f"--kubeconfig={kubeconfig}",
            f"--authentication-kubeconfig={kubeconfig}",
            f"--authorization-kubeconfig={kubeconfig}",
            "--authentication-skip-lookup=true",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
            f"--secure-port={port}",
            f"--cert-dir={self.directory}",
            "--kube-api-qps=5000",
            "--kube-api-burst=5000",
            *flags,
        )

    def _spawn(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        parent = os.getpid()
        with (self.directory / f"{program}.log").open("ab") as log:
            process = self._running[program] = subprocess.Popen(
                [self._assets / program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=lambda: die_with_parent(parent),
            )
        return process

    def _kill(self, program: str) -> None:
        process = self._running.pop(program)
        process.kill()
        process.wait()

    def _wait_ready(self, program: str, ready: Callable[[], bool], *, seconds: float = 100) -> None:
        """Wait until a program is ready.

        Raises:
            ChildProcessError: it exited.
        """
        deadline, delay = time.monotonic() + seconds, 0.02
        while True:
            code = self._running[program].poll()
            if code is not None:
                raise ChildProcessError(
                    f"{program} ended with {code}:\n{self.log(program)[-3000:]}"
                )
            try:
                if ready():
                    return
            except (OSError, http.client.HTTPException):
                pass
            if time.monotonic() > deadline:
                raise TimeoutError(f"{program} is not ready:\n{self.log(program)[-3000:]}")
            time.sleep(delay)
            delay = min(delay * 1.2, 0.2)  # the program needs the CPU, too

    def request_json(self, method: str, path: str, body: Json | None = None) -> int:
        """Send a request without a loop; returns the status."""
        return self.request_text(method, path, body)[0]

    def request_text(
        self, method: str, path: str, body: Json | None = None, *, accept: str = "application/json"
    ) -> tuple[int, str]:
        """Send a request without a loop; returns status and text of the response."""
        context = ssl.create_default_context(cadata=self.pki.ca_data.decode())
        headers = {"Authorization": f"Bearer {self.tokens['admin']}", "Accept": accept}
        headers["Content-Type"] = "application/json"
        data = None if body is None else json.dumps(body)
        with closing(
            http.client.HTTPSConnection("127.0.0.1", self.port, timeout=60, context=context)
        ) as connection:
            connection.request(method, path, data, headers)
            response = connection.getresponse()
            return response.status, response.read().decode(errors="replace")

    def wait_status(
        self, status: int, path: str, *, method: str = "GET", body: Json | None = None
    ) -> None:
        """Wait until a request gets *status*."""
        self._wait_ready("kube-apiserver", lambda: self.request_json(method, path, body) == status)


@dataclass(slots=True)
class RealServer(Server):
    """A test's view of a real API server."""

    kube: RealKube

    def kubeconfig_of(self, user: str) -> Path:
        """A kubeconfig of one user."""
        return self.kube.kubeconfig_of(user)

    async def wait_established(self, name: str) -> None:
        """Wait until a definition is, and set the time of that to a past one.

        kube-apiserver waits two seconds before it creates an object of a kind that has been
        established for less than that, because other replicas might not have seen the kind.
        """
        await Server.wait_established(self, name)

        async def is_backdated() -> bool:
            path = CRDS.path("", name)
            found = await self.get(path)
            for condition in found["status"]["conditions"]:
                condition["lastTransitionTime"] = "2020-01-01T00:00:00Z"
            response = await self.request("PUT", f"{path}/status", found)
            assert response.status in (200, 409), response.body
            return response.status == 200

        await wait_until_true(is_backdated)


@asynccontextmanager
async def server_view(kube: RealKube) -> AsyncIterator[RealServer]:
    """A test's view of processes that run already."""
    context = ssl.create_default_context(cadata=kube.pki.ca_data.decode())
    connector = aiohttp.TCPConnector(ssl=context, limit=0)
    async with aiohttp.ClientSession(connector=connector, read_bufsize=2**22) as session:
        yield RealServer(
            url=kube.url,
            pki=kube.pki,
            tokens=kube.tokens,
            kubeconfig=kube.kubeconfig_of("admin"),
            session=session,
            kube=kube,
        )


@asynccontextmanager
async def real_server(
    tmp_path: Path, options: RealKubeOptions | None = None, *, crds: Sequence[Json] = ()
) -> AsyncIterator[RealServer]:
    """A real API server for the length of the block."""
    with RealKube(tmp_path / "kube", options) as kube:
        async with server_view(kube) as server:
            await server.install_crds(*crds)
            yield server


def _ports() -> Iterator[int]:
    """All ports of this process, one after the other, again and again."""
    first = 20000 + 3000 * (int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % 4)
    begin = random.randrange(3000)
    while True:
        for number in range(3000):
            yield first + (begin + number) % 3000


_PORTS = _ports()


def free_ports(count: int) -> list[int]:
    """Return free ports below the kernel's ephemeral range.

    Each xdist worker searches its own range, and a port is not returned again soon, so that no
    other test takes it before its program binds it.
    """
    return list(islice(filter(_is_free, _PORTS), count))


def _is_free(port: int) -> bool:
    with socket.socket() as trial:
        try:
            trial.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _private(path: Path, text: str) -> None:
    path.touch(mode=0o600)
    path.write_text(text)


def _signing_key() -> str:
    """PEM of a key for the tokens of service accounts, in the one form that is read everywhere."""
    return (
        ec.generate_private_key(ec.SECP256R1())
        .private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
        .decode()
    )


def _crd_key(definition: Json) -> str:
    return _base64(f"{_CRD_KEYS}{definition['metadata']['name']}".encode())


def _base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()
