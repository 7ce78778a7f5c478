"""The checks of the Pod Security Standards, by level and version; pure.

Each check returns its reason and detail if a pod violates it. Their order and texts are those of
Kubernetes.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from ..http.requests import Json

BASELINE, RESTRICTED = "baseline", "restricted"
LATEST_MINOR = 35
"""Minor version of Kubernetes after which no check has changed."""


class Violation(NamedTuple):
    """What a pod violates."""

    reason: str
    detail: str

    def __str__(self) -> str:
        return f"{self.reason} ({self.detail})"


Check = Callable[[Json, Json], Violation | None]
"""Checks the metadata and the spec of a pod."""

_APP_ARMOR = "container.apparmor.security.beta.kubernetes.io"
_SECCOMP = "seccomp.security.alpha.kubernetes.io"
_BASELINE_CAPABILITIES = frozenset((
    "AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD",
    "NET_BIND_SERVICE", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
))  # fmt: skip
_UNRESTRICTED_VOLUMES = frozenset((
    "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "image", "persistentVolumeClaim",
    "projected", "secret",
))  # fmt: skip
_PROFILES = ("Localhost", "RuntimeDefault")
_SELINUX_TYPES = ("", "container_t", "container_init_t", "container_kvm_t")
_SYSCTLS: tuple[tuple[int, tuple[str, ...]], ...] = (
    (0, (
        "kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.tcp_syncookies",
        "net.ipv4.ping_group_range", "net.ipv4.ip_unprivileged_port_start",
    )),
    (27, ("net.ipv4.ip_local_reserved_ports",)),
    (29, (
        "net.ipv4.tcp_keepalive_time", "net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_keepalive_intvl",
        "net.ipv4.tcp_keepalive_probes",
    )),
    (32, ("net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem")),
)  # fmt: skip
"""The sysctls that are allowed from a minor version on."""


def _containers(spec: Json) -> Iterator[tuple[str, Json]]:
    """Yield the name and the security context of each container."""
    for container in _all_containers(spec):
        yield container.get("name", ""), container.get("securityContext") or {}


def _all_containers(spec: Json) -> Iterator[Json]:
    for kind in ("initContainers", "containers", "ephemeralContainers"):
        yield from spec.get(kind) or ()


def _quoted(items: Iterable[str]) -> str:
    return ", ".join(f'"{item}"' for item in items)


def _named(names: Sequence[str]) -> str:
    return f"container{_s(names)} {_quoted(names)}"


def _s(items: Sequence[object] | set[str]) -> str:
    return "" if len(items) == 1 else "s"


def _setters(spec: Json, sets: Callable[[Json], bool]) -> tuple[str, list[Json]]:
    """Return who sets something in a security context, as messages name it, and the contexts."""
    names, contexts = [], []
    of_pod = spec.get("securityContext") or {}
    for name, context in _containers(spec):
        if sets(context):
            names.append(name)
            contexts.append(context)
    found = [_named(names)] if names else []
    if sets(of_pod):
        found.insert(0, "pod")
        contexts.append(of_pod)
    return " and ".join(found), contexts


def _profile(context: Json, key: str) -> str | None:
    profile = context.get(key)
    return None if profile is None else profile.get("type", "")


def _app_armor(metadata: Json, spec: Json) -> Violation | None:
    def is_bad(context: Json) -> bool:
        return _profile(context, "appArmorProfile") not in (None, *_PROFILES)

    setters, contexts = _setters(spec, is_bad)
    values = sorted({str(_profile(context, "appArmorProfile")) for context in contexts})
    annotations = sorted(
        f'{key}="{value}"'
        for key, value in (metadata.get("annotations") or {}).items()
        if key.startswith(f"{_APP_ARMOR}/")
        and value not in ("", "runtime/default")
        and not value.startswith("localhost/")
    )
    if annotations:
        setters = " and ".join(filter(None, (setters, f"annotation{_s(annotations)}")))
        values += annotations
    if not setters:
        return None
    return Violation(
        f"forbidden AppArmor profile{_s(values)}",
        f"{setters} must not set AppArmor profile type to {_quoted(values)}",
    )


def _added(context: Json, allowed: Iterable[str]) -> set[str]:
    return set((context.get("capabilities") or {}).get("add") or ()).difference(allowed)


def _adding(spec: Json, allowed: Iterable[str]) -> str:
    """Return which containers add capabilities that are not *allowed*; empty if none does."""
    bad = {name: _added(context, allowed) for name, context in _containers(spec)}
    names = [name for name, found in bad.items() if found]
    if not names:
        return ""
    capabilities = sorted(set().union(*bad.values()))
    return (
        f"{_named(names)} must not include {_quoted(capabilities)} in "
        "securityContext.capabilities.add"
    )


def _baseline_capabilities(metadata: Json, spec: Json) -> Violation | None:
    detail = _adding(spec, _BASELINE_CAPABILITIES)
    return Violation("non-default capabilities", detail) if detail else None


def _restricted_capabilities(metadata: Json, spec: Json) -> Violation | None:
    keeping = [
        name
        for name, context in _containers(spec)
        if "ALL" not in ((context.get("capabilities") or {}).get("drop") or ())
    ]
    details = [_adding(spec, ("NET_BIND_SERVICE",))]
    if keeping:
        text = f'{_named(keeping)} must set securityContext.capabilities.drop=["ALL"]'
        details.insert(0, text)
    detail = "; ".join(filter(None, details))
    return Violation("unrestricted capabilities", detail) if detail else None


def _host_namespaces(metadata: Json, spec: Json) -> Violation | None:
    found = [f"{key}=true" for key in ("hostNetwork", "hostPID", "hostIPC") if spec.get(key)]
    return Violation("host namespaces", ", ".join(found)) if found else None


def _host_paths(metadata: Json, spec: Json) -> Violation | None:
    found = [each["name"] for each in spec.get("volumes") or () if "hostPath" in each]
    return Violation("hostPath volumes", f"volume{_s(found)} {_quoted(found)}") if found else None


def _host_ports(metadata: Json, spec: Json) -> Violation | None:
    bad = {
        container.get("name", ""): {
            str(port["hostPort"]) for port in container.get("ports") or () if port.get("hostPort")
        }
        for container in _all_containers(spec)
    }
    names = [name for name, ports in bad.items() if ports]
    if not names:
        return None
    ports = sorted(set().union(*bad.values()))
    verb = "uses" if len(names) == 1 else "use"
    return Violation("hostPort", f"{_named(names)} {verb} hostPort{_s(ports)} {', '.join(ports)}")


def _probe_hosts(metadata: Json, spec: Json) -> Violation | None:
    names: set[str] = set()
    hosts: set[str] = set()
    for container in _all_containers(spec):
        lifecycle = container.get("lifecycle") or {}
        handlers = [
            *(container.get(key) for key in ("livenessProbe", "readinessProbe", "startupProbe")),
            *(lifecycle.get(key) for key in ("postStart", "preStop")),
        ]
        found = {
            action["host"]
            for handler in handlers
            for action in ((handler or {}).get("httpGet"), (handler or {}).get("tcpSocket"))
            if action and action.get("host")
        }
        if found:
            names.add(container.get("name", ""))
            hosts |= found
    if not names:
        return None
    what = "probe or lifecycle host"
    verb = "uses" if len(names) == 1 else "use"
    detail = f"{_named(sorted(names))} {verb} {what}{_s(hosts)} {_quoted(sorted(hosts))}"
    return Violation(what, detail)


def _privileged(metadata: Json, spec: Json) -> Violation | None:
    names = [name for name, context in _containers(spec) if context.get("privileged")]
    if not names:
        return None
    return Violation("privileged", f"{_named(names)} must not set securityContext.privileged=true")


def _proc_mount(metadata: Json, spec: Json) -> Violation | None:
    bad = {
        name: context["procMount"]
        for name, context in _containers(spec)
        if context.get("procMount") not in (None, "Default")
    }
    if not bad:
        return None
    values = _quoted(sorted(set(bad.values())))
    detail = f"{_named(list(bad))} must not set securityContext.procMount to {values}"
    return Violation("procMount", detail)


def _selinux(types: Sequence[str]) -> Check:
    def is_bad(context: Json) -> bool:
        found = context.get("seLinuxOptions") or {}
        return found.get("type", "") not in types or bool(found.get("user") or found.get("role"))

    def check(metadata: Json, spec: Json) -> Violation | None:
        setters, contexts = _setters(spec, is_bad)
        if not setters:
            return None
        options = [context["seLinuxOptions"] for context in contexts]
        bad = sorted({each.get("type", "") for each in options}.difference(types))
        details = [f"type{_s(bad)} {_quoted(bad)}"] if bad else []
        details += [
            f"{key} may not be set"
            for key in ("user", "role")
            if any(each.get(key) for each in options)
        ]
        text = f"{setters} set forbidden securityContext.seLinuxOptions: {'; '.join(details)}"
        return Violation("seLinuxOptions", text)

    return check


def _seccomp_annotations(metadata: Json, spec: Json) -> Violation | None:
    annotations = metadata.get("annotations") or {}
    keys = [f"{_SECCOMP}/pod", *(f"container.{_SECCOMP}/{name}" for name, _ in _containers(spec))]
    bad = sorted(
        {
            f'{key}="{annotations[key]}"'
            for key in keys
            if key in annotations
            and annotations[key] not in ("runtime/default", "docker/default")
            and not annotations[key].startswith("localhost/")
        }
    )
    if not bad:
        return None
    return Violation("seccompProfile", f"forbidden annotation{_s(bad)} {', '.join(bad)}")


def _seccomp(metadata: Json, spec: Json) -> Violation | None:
    def is_bad(context: Json) -> bool:
        return _profile(context, "seccompProfile") not in (None, *_PROFILES)

    setters, contexts = _setters(spec, is_bad)
    if not setters:
        return None
    values = _quoted(sorted({str(_profile(context, "seccompProfile")) for context in contexts}))
    detail = f"{setters} must not set securityContext.seccompProfile.type to {values}"
    return Violation("seccompProfile", detail)


def _seccomp_required(metadata: Json, spec: Json) -> Violation | None:
    found = _seccomp(metadata, spec)
    of_pod = spec.get("securityContext") or {}
    if found or _profile(of_pod, "seccompProfile") is not None:
        return found
    missing = [
        name for name, context in _containers(spec) if _profile(context, "seccompProfile") is None
    ]
    if not missing:
        return None
    detail = (
        f"pod or {_named(missing)} must set securityContext.seccompProfile.type to "
        '"RuntimeDefault" or "Localhost"'
    )
    return Violation("seccompProfile", detail)


def _sysctls(allowed: frozenset[str]) -> Check:
    def check(metadata: Json, spec: Json) -> Violation | None:
        sysctls = (spec.get("securityContext") or {}).get("sysctls") or ()
        bad = [each["name"] for each in sysctls if each["name"] not in allowed]
        return Violation("forbidden sysctls", ", ".join(bad)) if bad else None

    return check


def _host_process(metadata: Json, spec: Json) -> Violation | None:
    def is_bad(context: Json) -> bool:
        return bool((context.get("windowsOptions") or {}).get("hostProcess"))

    setters, _ = _setters(spec, is_bad)
    if not setters:
        return None
    detail = f"{setters} must not set securityContext.windowsOptions.hostProcess=true"
    return Violation("hostProcess", detail)


def _privilege_escalation(metadata: Json, spec: Json) -> Violation | None:
    names = [
        name
        for name, context in _containers(spec)
        if context.get("allowPrivilegeEscalation") is not False
    ]
    if not names:
        return None
    detail = f"{_named(names)} must set securityContext.allowPrivilegeEscalation=false"
    return Violation("allowPrivilegeEscalation != false", detail)


def _restricted_volumes(metadata: Json, spec: Json) -> Violation | None:
    names: list[str] = []
    kinds: set[str] = set()
    for volume in spec.get("volumes") or ():
        sources = volume.keys() - {"name"}
        if sources.isdisjoint(_UNRESTRICTED_VOLUMES):
            names.append(volume["name"])
            kinds |= sources or {"unknown"}
    if not names:
        return None
    verb = "uses" if len(names) == 1 else "use"
    detail = (
        f"volume{_s(names)} {_quoted(names)} {verb} restricted volume type{_s(kinds)} "
        f"{_quoted(sorted(kinds))}"
    )
    return Violation("restricted volume types", detail)


def _non_root(metadata: Json, spec: Json) -> Violation | None:
    def is_bad(context: Json) -> bool:
        return context.get("runAsNonRoot") is False

    reason = "runAsNonRoot != true"
    setters, _ = _setters(spec, is_bad)
    if setters:
        return Violation(reason, f"{setters} must not set securityContext.runAsNonRoot=false")
    if (spec.get("securityContext") or {}).get("runAsNonRoot"):
        return None
    missing = [name for name, context in _containers(spec) if context.get("runAsNonRoot") is None]
    if not missing:
        return None
    return Violation(reason, f"pod or {_named(missing)} must set securityContext.runAsNonRoot=true")


def _root_user(metadata: Json, spec: Json) -> Violation | None:
    setters, _ = _setters(spec, lambda context: context.get("runAsUser") == 0)
    return Violation("runAsUser=0", f"{setters} must not set runAsUser=0") if setters else None


def _unless_windows(check: Check) -> Check:
    def checked(metadata: Json, spec: Json) -> Violation | None:
        of_windows = (spec.get("os") or {}).get("name") == "windows"
        return None if of_windows else check(metadata, spec)

    return checked


def _unless_in_user_namespace(check: Check) -> Check:
    def checked(metadata: Json, spec: Json) -> Violation | None:
        return None if spec.get("hostUsers") is False else check(metadata, spec)

    return checked


def _sysctl_versions() -> dict[int, Check]:
    allowed: frozenset[str] = frozenset()
    found = {}
    for minor, names in _SYSCTLS:
        allowed |= frozenset(names)
        found[minor] = _sysctls(allowed)
    return found


_BASELINE: Mapping[str, Mapping[int, Check]] = {
    "appArmorProfile": {0: _app_armor},
    "capabilities": {0: _baseline_capabilities},
    "hostNamespaces": {0: _host_namespaces},
    "hostPathVolumes": {0: _host_paths},
    "hostPorts": {0: _host_ports},
    "hostProbesAndHostLifecycle": {34: _probe_hosts},
    "privileged": {0: _privileged},
    "procMount": {0: _proc_mount, 35: _unless_in_user_namespace(_proc_mount)},
    "seLinuxOptions": {
        0: _selinux(_SELINUX_TYPES), 31: _selinux((*_SELINUX_TYPES, "container_engine_t")),
    },
    "seccompProfile": {0: _seccomp_annotations, 19: _seccomp},
    "sysctls": _sysctl_versions(),
    "windowsHostProcess": {0: _host_process},
}  # fmt: skip
"""Checks by the minor version from which on they apply."""

_RESTRICTED: Mapping[str, Mapping[int, Check]] = {
    "allowPrivilegeEscalation": {
        8: _privilege_escalation, 25: _unless_windows(_privilege_escalation),
    },
    "capabilities": {
        22: _restricted_capabilities, 25: _unless_windows(_restricted_capabilities),
    },
    "procMount": {35: _proc_mount},
    "hostPathVolumes": {0: _restricted_volumes},
    "runAsNonRoot": {0: _non_root, 35: _unless_in_user_namespace(_non_root)},
    "runAsUser": {23: _root_user, 35: _unless_in_user_namespace(_root_user)},
    "seccompProfile": {19: _seccomp_required, 25: _unless_windows(_seccomp_required)},
}  # fmt: skip
"""The same; a check replaces that of the baseline with its name."""


def _applicable(table: Mapping[str, Mapping[int, Check]], minor: int) -> dict[str, Check]:
    return {
        name: versions[max(each for each in versions if each <= minor)]
        for name, versions in table.items()
        if min(versions) <= minor
    }


@lru_cache
def _checks(level: str, minor: int) -> tuple[Check, ...]:
    baseline = _applicable(_BASELINE, minor)
    if level == BASELINE:
        return tuple(baseline.values())
    restricted = _applicable(_RESTRICTED, minor)
    kept = (check for name, check in baseline.items() if name not in restricted)
    return (*kept, *restricted.values())


def violations(level: str, minor: int | None, metadata: Any, spec: Json) -> list[Violation]:
    """Return what a pod violates of *level* in version 1.*minor*; ``None``: the latest."""
    if level not in (BASELINE, RESTRICTED):
        return []
    version = LATEST_MINOR if minor is None else min(minor, LATEST_MINOR)
    found = (check(metadata or {}, spec) for check in _checks(level, version))
    return [violation for violation in found if violation is not None]
