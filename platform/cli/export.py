"""``batholith export``: the user's objects of an embedded cluster, as manifests."""

import asyncio
import re
import sys
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from ..model.base import ApiStruct
from ..model.names import Resource
from .cluster import DataDirOption, resolve_data_dir
from .exported_objects import (
    LEFT_OUT_KINDS,
    SECRET,
    in_order,
    is_finished,
    is_of_user,
    notes,
    to_manifest,
)
from .manager import exit_on_error

if TYPE_CHECKING:
    from ..kube.client.client import Client

Json = dict[str, Any]
_LIKE_NUMBERS_AND_BOOLEANS = re.compile(r"[-+.0-9]|[yYnN]\Z")


class _ApiResource(ApiStruct, frozen=True):
    """A resource in a discovery document."""

    name: str = ""
    kind: str = ""
    namespaced: bool = False
    verbs: tuple[str, ...] = ()


class _ResourceList(ApiStruct, frozen=True):
    resources: tuple[_ApiResource, ...] = ()


class _Version(ApiStruct, frozen=True):
    version: str = ""


class _Group(ApiStruct, frozen=True):
    name: str = ""
    preferred_version: _Version = _Version()


class _GroupList(ApiStruct, frozen=True):
    groups: tuple[_Group, ...] = ()


@dataclass(slots=True)
class Export:
    """Manifests in the order in which they can be applied, and what was left out."""

    manifests: list[Json] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    """Numbers of objects of the user that are not exported, by the reason."""


def export(
    data_dir: DataDirOption = None,
    namespace: Annotated[
        list[str] | None,
        typer.Option(
            "--namespace", "-n", help="Export the objects of this namespace alone; repeatable."
        ),
    ] = None,
    secrets: Annotated[
        bool, typer.Option("--secrets", help="Export Secrets, with their content in plain text.")
    ] = False,
) -> None:
    """Print the objects of a cluster that is up, as manifests to apply on Kubernetes."""
    from ..kube.client.client import Client
    from ..kube.client.config import load_credentials
    from ..kube.errors import ApiError, ConfigError, ConnectionLostError

    data = resolve_data_dir(data_dir)

    async def run() -> Export:
        async with Client(load_credentials(str(data.kubeconfig)), user_agent="batholith") as client:
            return await collect(client, namespaces=namespace or (), secrets=secrets)

    with exit_on_error(ApiError, ConfigError, ConnectionLostError, OSError):
        _check_is_up(data.kubeconfig)
        found = asyncio.run(run())
    write(found.manifests, sys.stdout)
    for manifest in found.manifests:
        for note in notes(manifest):
            typer.echo(f"note: {_described(manifest)} {note}", err=True)
    for reason, number in sorted(found.left_out.items()):
        typer.echo(f"note: left out {number} {reason}", err=True)


def write(manifests: Iterable[Json], file: TextIO) -> None:
    """Write YAML that kubectl reads as it was.

    Its parser takes more plain texts for numbers and booleans than PyYAML does, such as ``1e3`` and
    ``y``, also as keys.
    """
    import yaml

    class Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
        """Quotes these."""

    def represent(dumper: Any, text: str) -> yaml.ScalarNode:
        style = "'" if _LIKE_NUMBERS_AND_BOOLEANS.match(text) else None
        found: yaml.ScalarNode = dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)
        return found

    Dumper.add_representer(str, represent)
    yaml.dump_all(manifests, file, Dumper=Dumper, sort_keys=False, allow_unicode=True)


def _check_is_up(kubeconfig: Path) -> None:
    """Raise OSError if no cluster was ever up in the data directory."""
    if not kubeconfig.exists():
        raise OSError(f"{kubeconfig} does not exist: start the cluster with `batholith up`")


async def collect(client: "Client", *, namespaces: Collection[str], secrets: bool) -> Export:
    """Return the objects of the user in *namespaces*, or in all and those of no namespace.

    Raises:
        ApiError, ConnectionLostError: a request failed.
    """
    found, own_crds = Export(), _own_crds()
    async for resource in _resources(client):
        if namespaces and not resource.namespaced:
            continue
        for listed in (await client.list(resource, view=dict)).items:
            obj: Json = {"apiVersion": resource.api_version, "kind": resource.kind, **listed}
            metadata = obj["metadata"]
            if namespaces and metadata.get("namespace") not in namespaces:
                continue
            if not is_of_user(obj) or metadata["name"] in own_crds:
                continue
            if obj["kind"] == SECRET and not secrets:
                found.left_out["Secrets: export them with --secrets"] += 1
            elif is_finished(obj):
                found.left_out["jobs and pods that have ended"] += 1
            else:
                found.manifests.append(to_manifest(obj))
    found.manifests = in_order(found.manifests)
    return found


def _own_crds() -> frozenset[str]:
    """Return the names of the definitions that Batholith installs itself."""
    from ..model import crds

    return frozenset(each["metadata"]["name"] for each in (*crds.load(), *crds.load_training()))


async def _resources(client: "Client") -> AsyncIterator[Resource]:
    """Yield the resources that can be listed and created, in their preferred versions."""
    groups = (await client.get_path("/apis", view=_GroupList)).groups
    preferred = [(group.name, group.preferred_version.version) for group in groups]
    for group, version in (("", "v1"), *preferred):
        path = f"/apis/{group}/{version}" if group else f"/api/{version}"
        for each in (await client.get_path(path, view=_ResourceList)).resources:
            wanted = {"create", "list"} <= set(each.verbs) and "/" not in each.name
            if wanted and each.kind not in LEFT_OUT_KINDS:
                yield Resource(group, version, each.name, each.kind, namespaced=each.namespaced)


def _described(manifest: Json) -> str:
    metadata = manifest["metadata"]
    name = "/".join(filter(None, (metadata.get("namespace"), metadata["name"])))
    return f"{manifest['kind']} {name}"
