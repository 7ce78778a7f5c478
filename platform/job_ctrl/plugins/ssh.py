"""``ssh``: log in from pod to pod of a job without a password.

A Secret holds one key pair for the job and a client configuration with its hosts. The keys are
generated once: of an existing Secret only the list of hosts is updated.
"""

from base64 import b64encode
from collections.abc import Sequence

import msgspec
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from ...model import names
from ...model.job import Job
from ...model.names import Resource
from ..podgroups import owner_reference
from ..pods import Pod
from . import arguments
from .base import DesiredObject, JsonObject
from .pod_mutations import add_mount, hostnames

_HOME = "/root/.ssh"
_DEFAULT_PORT = 22
_KEY_BITS = 2048
_PRIVATE_MODE, _SHARED_MODE = 0o600, 0o644
_FILES = ("id_rsa", "id_rsa.pub", "authorized_keys", "config")


class Ssh:
    """Provides the Secret and mounts it in the pods' ``~/.ssh``."""

    def __init__(self, args: Sequence[str]) -> None:
        read = arguments.parse(
            args,
            {
                "ssh-key-file-path": _HOME,
                "ssh-private-key": "",
                "ssh-public-key": "",
                "ssh-port": _DEFAULT_PORT,
            },
        )
        self.warnings = read.warnings
        if read.text("ssh-public-key") and not read.text("ssh-private-key"):
            unused = "--ssh-public-key has no effect without --ssh-private-key"
            self.warnings += (f"{unused}; a key pair is generated",)
        self._path = read.text("ssh-key-file-path")
        self._private = read.text("ssh-private-key")
        self._public = read.text("ssh-public-key")
        port = read.number("ssh-port")
        self._port = port if 0 < port < 1 << 16 else _DEFAULT_PORT

    def on_pod_create(self, pod: Pod, job: Job) -> None:
        """Mount the keys in every container."""
        name = _secret_name(job)
        secret = {
            "secretName": name,
            "items": [{"key": file, "path": f".ssh/{file}"} for file in _FILES],
            # The kubelet writes as root, and other users must be able to read.
            "defaultMode": _PRIVATE_MODE if self._path == _HOME else _SHARED_MODE,
        }
        volume = {"name": name, "secret": secret}
        add_mount(pod, volume, {"mountPath": self._path, "subPath": ".ssh"})

    def on_job_add(self, job: Job) -> Sequence[DesiredObject]:
        """Return the Secret, whose client configuration is updated when the job is scaled."""
        config = self._config(job)
        return [
            DesiredObject(
                resource=names.SECRETS,
                name=_secret_name(job),
                build=lambda: self._secret(job, config),
                synced_data={"config": _encode(config)},
            )
        ]

    def on_job_delete(self, job: Job) -> Sequence[tuple[Resource, str]]:
        """Return the Secret."""
        return [(names.SECRETS, _secret_name(job))]

    def _secret(self, job: Job, config: str) -> JsonObject:
        private, public = (self._private, self._public) if self._private else generate_key_pair()
        texts = (private, public, public, config)
        return {
            "metadata": {
                "name": _secret_name(job),
                "namespace": job.metadata.namespace,
                "ownerReferences": [msgspec.to_builtins(owner_reference(job))],
            },
            "data": dict(zip(_FILES, map(_encode, texts), strict=True)),
        }

    def _config(self, job: Job) -> str:
        lines = ["StrictHostKeyChecking no", "UserKnownHostsFile /dev/null"]
        for task in job.spec.tasks:
            for host, domain in hostnames(job, task):
                lines += [f"Host {host}", f"  HostName {domain}", f"  Port {self._port}"]
        return "".join(f"{line}\n" for line in lines)


def generate_key_pair() -> tuple[str, str]:
    """Return a new key pair: the private key as PEM, the public key as a line for sshd."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=_KEY_BITS)
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    return private.decode(), f"{public.decode()}\n"


def _secret_name(job: Job) -> str:
    return f"{job.metadata.name}-ssh"


def _encode(text: str) -> str:
    return b64encode(text.encode()).decode()
