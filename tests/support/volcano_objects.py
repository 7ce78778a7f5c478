"""What Volcano's chart installs, as far as we have to do with it, and jobs."""

from typing import Any

from batholith.model.names import JOBS

Json = dict[str, Any]
NAMES = {"controllers": "volcano-controllers", "scheduler": "volcano-scheduler"}
IMAGES = {"controllers": "vc-controller-manager", "scheduler": "vc-scheduler"}
LABELS = {"controllers": "volcano-controller", "scheduler": "volcano-scheduler"}


def deployment(role: str = "controllers", **changes: Any) -> Json:
    """A Deployment as Volcano's chart renders it; *changes* of name, image, app, replicas, args."""
    app = changes.get("app", LABELS[role])
    container = {
        "name": NAMES[role],
        "image": changes.get("image", f"docker.io/volcanosh/{IMAGES[role]}:v1.15.0"),
        "args": changes.get("args", ["--logtostderr", "-v=4", "2>&1"]),
    }
    return {
        "metadata": {
            "name": changes.get("name", NAMES[role]),
            "namespace": "volcano-system",
            "labels": {"app": app},
        },
        "spec": {
            "replicas": changes.get("replicas", 1),
            "selector": {"matchLabels": {"app": app}},
            "template": {
                "metadata": {"labels": {"app": app}},
                "spec": {"containers": [container]},
            },
        },
    }


def webhook(kind: str, path: str) -> Json:
    """A webhook configuration of Volcano: ``Mutating`` or ``Validating``, of a path."""
    resource, _, verb = path.strip("/").partition("/")
    service = {"name": "volcano-admission-service", "namespace": "volcano-system", "path": path}
    one = {
        "name": f"{verb}{resource[:-1]}.volcano.sh",
        "clientConfig": {"service": service},
        "rules": [
            {
                "apiGroups": ["batch.volcano.sh"],
                "apiVersions": ["v1alpha1"],
                "resources": [resource],
                "operations": ["CREATE"],
            }
        ],
        "failurePolicy": "Fail",
        "sideEffects": "NoneOnDryRun",
        "admissionReviewVersions": ["v1"],
    }
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": f"{kind}WebhookConfiguration",
        "metadata": {"name": f"volcano-admission-service-{resource}-{verb}"},
        "webhooks": [one],
    }


def sleeping_job(
    name: str, replicas: int, *, cpu: str, annotations: Json | None = None, **spec: Any
) -> Json:
    """A job whose pods sleep for an hour, in the default queue."""
    container = {
        "name": "main",
        "image": "busybox",
        "command": ["sleep", "3600"],
        "resources": {"requests": {"cpu": cpu}},
    }
    template = {"spec": {"containers": [container], "restartPolicy": "Never"}}
    return {
        "apiVersion": JOBS.api_version,
        "kind": JOBS.kind,
        "metadata": {"name": name, "annotations": annotations or {}},
        "spec": {
            "schedulerName": "volcano",
            "queue": "default",
            "minAvailable": replicas,
            "tasks": [{"name": "t", "replicas": replicas, "template": template}],
            **spec,
        },
    }
