"""Credential plugins of kubeconfigs (``exec``): programs that print an ExecCredential."""

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from ..model import times
from .effects import Secret
from .errors import ConfigError

TIMEOUT = 60.0
"""Seconds that a plugin may run."""
VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")


class _Status(msgspec.Struct, frozen=True, rename="camel"):
    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""
    expiration_timestamp: str = ""


class _ExecCredential(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str = ""
    kind: str = ""
    status: _Status = _Status()


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginCredential:
    """What a plugin printed."""

    token: Secret
    certificate: str = ""
    """PEM; empty for none."""
    key: Secret = field(default_factory=lambda: Secret(""))
    expires: datetime | None = None
    """When to run the plugin again; ``None``: once the server rejects the credentials."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecPlugin:
    """A program, and how a kubeconfig runs it: without a shell."""

    command: str
    arguments: tuple[str, ...] = field(default=(), repr=False)
    """They may contain secrets, as the environment may."""
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Variables in addition to those of this process."""
    api_version: str
    cluster: Mapping[str, Any] | None = None
    """Passed to a plugin with ``provideClusterInfo``."""
    install_hint: str = ""

    def run(self) -> PluginCredential:
        """Run the plugin; its standard error is that of this process, for its prompts.

        Raises:
            ConfigError: it fails, or prints no credential.
        """
        try:
            finished = subprocess.run(  # noqa: S603 - the user's kubeconfig names the program
                [self.command, *self.arguments],
                env={**os.environ, **self.environment, "KUBERNETES_EXEC_INFO": self._info()},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                timeout=TIMEOUT,
                check=False,
            )
        except FileNotFoundError:
            hint = f": {self.install_hint}" if self.install_hint else ""
            raise ConfigError(f"credential plugin {self.command!r} not found{hint}") from None
        except subprocess.TimeoutExpired:
            text = f"credential plugin {self.command!r} did not end within {TIMEOUT:.0f} s"
            raise ConfigError(text) from None
        except OSError as error:
            text = f"cannot run credential plugin {self.command!r}: {error.strerror}"
            raise ConfigError(text) from None
        if finished.returncode != 0:
            text = f"credential plugin {self.command!r} failed with exit code {finished.returncode}"
            raise ConfigError(text)
        return self._parse(finished.stdout)

    def _info(self) -> str:
        spec: dict[str, Any] = {"interactive": False}
        if self.cluster is not None:
            spec["cluster"] = dict(self.cluster)
        return json.dumps({"apiVersion": self.api_version, "kind": "ExecCredential", "spec": spec})

    def _parse(self, output: bytes) -> PluginCredential:
        # The output is a secret: no message quotes it, and no cause does.
        try:
            found = msgspec.json.decode(output, type=_ExecCredential)
            expiry = found.status.expiration_timestamp
            expires = times.parse(expiry) if expiry else None
        except (msgspec.MsgspecError, UnicodeDecodeError, times.TimeError):
            text = f"credential plugin {self.command!r} printed no valid ExecCredential"
            raise ConfigError(text) from None
        if found.kind != "ExecCredential" or found.api_version != self.api_version:
            text = f"credential plugin {self.command!r} printed no ExecCredential of version"
            raise ConfigError(f"{text} {self.api_version}")
        status = found.status
        if not status.token and not (status.client_certificate_data and status.client_key_data):
            text = f"credential plugin {self.command!r} printed neither token nor certificate"
            raise ConfigError(text)
        return PluginCredential(
            token=Secret(status.token),
            certificate=status.client_certificate_data,
            key=Secret(status.client_key_data),
            expires=expires,
        )


def resolve_command(command: str, directory: Path) -> str:
    """Return the program of a plugin: relative to the kubeconfig's directory if it has a slash."""
    if os.sep not in command or Path(command).is_absolute():
        return command
    return str(directory / command)
