"""``svc``: host names for the pods of a job.

A headless Service resolves the names, a ConfigMap lists them by task (as files in ``/etc/volcano``
and as environment variables), and a NetworkPolicy restricts ingress to the pods of the job.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ...model import names
from ...model.job import Job
from ...model.names import Resource
from ..podgroups import owner_reference
from ..pods import Pod
from . import arguments
from .base import DesiredObject, JsonObject
from .pod_mutations import add_env, add_mount, hostnames, subdomain

_MOUNT_PATH = "/etc/volcano"


class Svc:
    """Provides Service, ConfigMap and NetworkPolicy, and sets the host names of pods."""

    def __init__(self, args: Sequence[str]) -> None:
        read = arguments.parse(
            args,
            {
                "publish-not-ready-addresses": False,
                "disable-network-policy": False,
                "inject-hosts-env": True,
            },
        )
        self.warnings = read.warnings
        self._publish_not_ready = read.boolean("publish-not-ready-addresses")
        self._network_policy = not read.boolean("disable-network-policy")
        self._inject_hosts = read.boolean("inject-hosts-env")

    def on_pod_create(self, pod: Pod, job: Job) -> None:
        """Set the pod's hostname, and mount the host names of all pods."""
        spec = pod["spec"]
        spec["hostname"] = spec.get("hostname") or pod["metadata"]["name"]
        spec["subdomain"] = spec.get("subdomain") or job.metadata.name
        config = _config_name(job)
        if self._inject_hosts:
            keys = [
                f"VC_{_upper(task.name)}_{what}"
                for task in job.spec.tasks
                for what in ("HOSTS", "NUM")
            ]
            add_env(pod, [_from_config(key, config) for key in keys])
        add_mount(pod, {"name": config, "configMap": {"name": config}}, {"mountPath": _MOUNT_PATH})

    def validate_job(self, job: Job) -> Sequence[str]:
        """Warn about tasks whose host names the Service does not resolve."""
        return [
            f"plugin svc does not resolve the names of task {task.name!r}: its template has the"
            f" subdomain {domain!r}, and the Service is named {job.metadata.name!r}"
            for task in job.spec.tasks
            if (domain := subdomain(job, task)) != job.metadata.name
        ]

    def on_job_add(self, job: Job) -> Sequence[DesiredObject]:
        """Return the three objects, of which the ConfigMap is updated when the job is scaled."""
        job_name, data = job.metadata.name, _config_data(job)
        desired = [
            DesiredObject(
                resource=names.CONFIGMAPS,
                name=_config_name(job),
                build=lambda: {"metadata": _meta(job, _config_name(job)), "data": data},
                synced_data=data,
            ),
            DesiredObject(
                resource=names.SERVICES,
                name=job_name,
                build=lambda: {"metadata": _meta(job, job_name), "spec": self._service(job)},
            ),
        ]
        if self._network_policy:
            desired.append(
                DesiredObject(
                    resource=names.NETWORKPOLICIES,
                    name=job_name,
                    build=lambda: {
                        "metadata": _meta(job, job_name),
                        "spec": _network_policy_spec(job),
                    },
                )
            )
        return desired

    def on_job_delete(self, job: Job) -> Sequence[tuple[Resource, str]]:
        """Return the same objects, without the host names of a job that may be too large."""
        job_name = job.metadata.name
        found = [(names.CONFIGMAPS, _config_name(job)), (names.SERVICES, job_name)]
        return [*found, (names.NETWORKPOLICIES, job_name)] if self._network_policy else found

    def _service(self, job: Job) -> JsonObject:
        spec: JsonObject = {"clusterIP": "None", "selector": _selector(job)}
        if self._publish_not_ready:
            spec["publishNotReadyAddresses"] = True
        return spec


def _network_policy_spec(job: Job) -> JsonObject:
    selector = {"matchLabels": _selector(job)}
    return {
        "podSelector": selector,
        "ingress": [{"from": [{"podSelector": selector}]}],
        "policyTypes": ["Ingress"],
    }


def _config_data(job: Job) -> Mapping[str, str]:
    """Return the entries of the ConfigMap: all host names, by task."""
    data: dict[str, str] = {}
    for task in job.spec.tasks:
        domains = [domain for _, domain in hostnames(job, task)]
        data[f"{task.name.replace('-', '_')}.host"] = "\n".join(domains)
        data[f"VC_{_upper(task.name)}_HOSTS"] = ",".join(domains)
        data[f"VC_{_upper(task.name)}_NUM"] = str(len(domains))
    return data


def _from_config(key: str, config: str) -> dict[str, Any]:
    return {"name": key, "valueFrom": {"configMapKeyRef": {"name": config, "key": key}}}


def _upper(task: str) -> str:
    return task.replace("-", "_").upper()


def _config_name(job: Job) -> str:
    return f"{job.metadata.name}-svc"


def _selector(job: Job) -> dict[str, str]:
    return {names.JOB_NAME: job.metadata.name, names.JOB_NAMESPACE: job.metadata.namespace}


def _meta(job: Job, name: str) -> JsonObject:
    return {
        "name": name,
        "namespace": job.metadata.namespace,
        "ownerReferences": [msgspec.to_builtins(owner_reference(job))],
    }
