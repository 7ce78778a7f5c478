"""Components run with the RBAC rules of their ServiceAccounts; rules used according to the audit
log."""

import asyncio
import copy
import os
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.kubectl import Kubectl
from support.manifests import NAMESPACE, Json, Objects, of_kind, pod_spec

from batholith.local.agent.runtime.process_id import die_with_parent
from batholith.local.supervisor import kubeconfig


@dataclass(frozen=True, slots=True, order=True)
class Permission:
    """To do *verb* to *resource* (with its sub-resource); to objects of that *name*, if given."""

    group: str
    resource: str
    verb: str
    name: str = ""

    def covers(self, used: "Permission") -> bool:
        """Whether *used*, which names an object if the request did, is within this right."""
        same = (self.group, self.resource, self.verb) == (used.group, used.resource, used.verb)
        return same and self.name in ("", used.name)


def service_account(component: str) -> str:
    """The user name of a component's ServiceAccount."""
    return f"system:serviceaccount:{NAMESPACE}:batholith-{component}"


def granted_permissions(found: Objects, component: str) -> set[Permission]:
    """RBAC rules of a component in the manifests: of all roles that are bound to it."""
    bindings = [
        binding["roleRef"]
        for kind in ("ClusterRoleBinding", "RoleBinding")
        for binding in of_kind(found, kind).values()
        if any(subject["name"] == f"batholith-{component}" for subject in binding["subjects"])
    ]
    roles = [of_kind(found, each["kind"]).get(each["name"], {}) for each in bindings]
    return {
        right for role in roles for rule in role.get("rules", ()) for right in _permissions(rule)
    }


def used_permissions(log: Iterable[Json], component: str) -> set[Permission]:
    """Requests of a component in the audit log."""
    return {
        _permission_of(line)
        for line in log
        if line["user"]["username"] == service_account(component)
    }


def forbidden_requests(log: Iterable[Json]) -> list[str]:
    """Requests of components that were forbidden."""
    return sorted(
        f"{line['user']['username']} {line['verb']} {line['requestURI']}"
        for line in log
        if line.get("responseStatus", {}).get("code") in (401, 403)
        and line["user"]["username"].startswith(f"system:serviceaccount:{NAMESPACE}:")
    )


def redirected(found: Objects, url: str) -> Objects:
    """The webhooks at *url*: nothing routes Services here."""
    moved = copy.deepcopy(found)
    for (kind, _, _), each in moved.items():
        if kind.endswith("WebhookConfiguration"):
            for webhook in each["webhooks"]:
                path = webhook["clientConfig"].pop("service")["path"]
                webhook["clientConfig"]["url"] = url + path
    return moved


def _permissions(rule: Json) -> Iterator[Permission]:
    for group in rule["apiGroups"]:
        for resource in rule["resources"]:
            for verb in rule["verbs"]:
                for name in rule.get("resourceNames", [""]):
                    yield Permission(group, resource, verb, name)


def _permission_of(line: Json) -> Permission:
    about = line.get("objectRef", {})
    resource, below = about.get("resource", ""), about.get("subresource", "")
    return Permission(
        about.get("apiGroup", ""),
        f"{resource}/{below}" if below else resource,
        line["verb"],
        about.get("name", ""),
    )


@dataclass(slots=True)
class ComponentProcess:
    """One process of a component."""

    name: str
    log: Path
    process: asyncio.subprocess.Process
    arguments: tuple[str, ...]

    def uses_identity(self, identity: str) -> bool:
        """Whether this process contends for leadership under *identity*."""
        return f'"identity": "{identity}"' in self.log.read_text()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, such as SIGSTOP to hold it up."""
        self.process.send_signal(number)

    async def stop(self) -> int:
        """SIGTERM; its exit code."""
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(100):
            return await self.process.wait()


class ComponentProcesses:
    """Processes with the arguments of their Deployments and the rights of their accounts."""

    def __init__(self, found: Objects, kubectl: Kubectl, directory: Path, *, url: str) -> None:
        """The components reach the API server at *url*."""
        self._found = found
        self._url = url
        self._kubectl = kubectl
        self._directory = directory
        self.running: list[ComponentProcess] = []

    async def kubeconfig(self, component: str) -> Path:
        """Credentials of a component's ServiceAccount, as issued by the API server."""
        token = await self._kubectl("create", "token", f"batholith-{component}", "-n", NAMESPACE)
        path = self._directory / f"{component}.kubeconfig"
        ca = self._kubectl.server.ca
        access = kubeconfig.ClusterAccess(
            server=self._url, ca=ca, user=component, token=token.strip()
        )
        kubeconfig.write(path, access)
        return path

    async def start(
        self,
        component: str,
        *more: str,
        ports: Mapping[str, int],
        environment: dict[str, str] | None = None,
    ) -> ComponentProcess:
        """Start a process as the Deployment does, on loopback.

        *ports*: those of the Deployment, as text, and the ports used instead.
        """
        credentials = await self.kubeconfig(component)
        arguments = [*self._arguments(component, ports), *more, f"--kubeconfig={credentials}"]
        return await self.run(component, *arguments, environment=environment)

    async def run(
        self, name: str, *arguments: str, environment: dict[str, str] | None = None
    ) -> ComponentProcess:
        """Start ``batholith`` with *arguments*."""
        log = self._directory / f"{name}-{len(self.running)}.log"
        parent = os.getpid()
        with log.open("wb") as out:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "batholith.cli", *arguments,
                stdin=asyncio.subprocess.DEVNULL, stdout=out, stderr=out,
                env=dict(os.environ) | (environment or {}),
                preexec_fn=lambda: die_with_parent(parent),
            )  # fmt: skip
        self.running.append(ComponentProcess(name, log, process, arguments))
        return self.running[-1]

    def _arguments(self, component: str, ports: Mapping[str, int]) -> list[str]:
        deployment: Any = of_kind(self._found, "Deployment")[f"batholith-{component}"]
        (container,) = pod_spec(deployment)["containers"]
        arguments = [
            argument.replace("$(POD_NAMESPACE)", NAMESPACE)
            .replace("$(POD_IP)", "127.0.0.1")
            .replace("--simulation-address=:8090", "--simulation-address=127.0.0.1:0")
            for argument in container["args"]
        ]
        for old, new in ports.items():
            (index,) = (at for at, argument in enumerate(arguments) if argument.endswith(old))
            host = "127.0.0.1" if old.startswith(":") else ""
            arguments[index] = arguments[index].removesuffix(old) + (
                f"{host}:{new}" if host else str(new)
            )
        return arguments

    async def stop(self) -> None:
        """End all of them."""
        for component in reversed(self.running):
            await component.stop()
