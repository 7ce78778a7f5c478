"""``batholith preflight``: check a cluster before Batholith is installed or Volcano is stopped."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict
from importlib import metadata
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from .flag_groups import ClusterFlags, Kubeconfig
from .manager import exit_on_error, new_client

if TYPE_CHECKING:
    from ..kube.client.client import Client
    from .preflight_checks import CheckResult, Plan
    from .preflight_image import ImageOptions


ImageOption = Annotated[
    str,
    typer.Option(
        help="Image to be installed; a pod runs it and is deleted.",
        show_default="that of the manifests",
    ),
]
PullSecret = Annotated[str, typer.Option(help="Name of a Secret for pulling the image.")]
SkipImage = Annotated[
    bool, typer.Option("--skip-image", help="Do not run a pod; the image is not checked.")
]
Timeout = Annotated[
    float, typer.Option(min=1, help="Seconds until the pod of the image must have ended.")
]
Replaced = Annotated[
    Literal["none", "volcano"],
    typer.Option("--from", help="The system that Batholith is to replace."),
]
Namespace = Annotated[str, typer.Option(help="Namespace of the installation, and of Volcano.")]
Output = Annotated[
    Literal["text", "json"], typer.Option("--output", "-o", help="Format of the results.")
]


def preflight(
    kubeconfig: Kubeconfig = None,
    image: ImageOption = "",
    pull_secret: PullSecret = "",
    skip_image: SkipImage = False,
    timeout: Timeout = 120.0,
    replaced: Replaced = "none",
    namespace: Namespace = "volcano-system",
    output: Output = "text",
) -> None:
    """Check whether Batholith can be installed; exit with 1 and print what to do if not.

    Nothing is changed, except that a pod runs the image for some seconds.
    """
    from ..kube.errors import (
        UNAVAILABLE_ERRORS,
        ApiError,
        ConfigError,
        ConnectionLostError,
        DecodeError,
    )
    from .preflight_checks import Plan
    from .preflight_image import ImageOptions

    plan = Plan(namespace=namespace, from_volcano=replaced == "volcano")
    options = ImageOptions(
        image=image or f"batholith:{metadata.version('batholith')}",
        namespace=namespace,
        pull_secret=pull_secret,
        timeout=timeout,
    )
    errors = (ConfigError, ApiError, ConnectionLostError, DecodeError, *UNAVAILABLE_ERRORS)
    with exit_on_error(*errors):
        run = _run(ClusterFlags(kubeconfig=kubeconfig), plan, None if skip_image else options)
        results = asyncio.run(run)
    _print(results, output)
    if any(each.outcome == "failed" for each in results):
        raise typer.Exit(1)


async def _run(
    cluster: ClusterFlags, plan: "Plan", options: "ImageOptions | None"
) -> "list[CheckResult]":
    async with new_client(cluster, "preflight") as client:
        return [each async for each in run_checks(client, plan, options)]


async def run_checks(
    client: "Client", plan: "Plan", options: "ImageOptions | None"
) -> "AsyncIterator[CheckResult]":
    """Yield the result of each check, as soon as it is known."""
    from . import preflight_checks as checks

    version = await checks.server_version(client)
    yield checks.check_version(version)
    selected = {
        "permissions": checks.check_rights(client, plan),
        "crds": checks.check_crds(client),
        "other systems": checks.check_other_systems(client, plan),
    }
    if plan.from_volcano:
        selected["scheduler configuration"] = checks.check_volcano_conf(client, plan.namespace)
    selected["image"] = _check_image(client, options, version)
    for name, results in selected.items():
        async for result in checks.guarded(name, results):
            yield result


async def _check_image(
    client: "Client", options: "ImageOptions | None", version: str
) -> "AsyncIterator[CheckResult]":
    from . import preflight_image
    from .preflight_checks import EMBEDDED, CheckResult

    name = preflight_image.NAME
    if options is None:
        yield CheckResult(name=name, outcome="skipped", message="not checked (--skip-image)")
    elif EMBEDDED in version:
        text = "the embedded cluster runs programs of this machine, and pulls no images"
        yield CheckResult(name=name, outcome="skipped", message=text)
    else:
        yield await preflight_image.check_image(client, options)


def _print(results: "Sequence[CheckResult]", output: str) -> None:
    if output == "json":
        ready = all(each.outcome != "failed" for each in results)
        document = {"ready": ready, "checks": [asdict(each) for each in results]}
        typer.echo(json.dumps(document, indent=2))
        return
    for each in results:
        typer.echo(f"{each.outcome:<8} {each.name}: {each.message}")
        if each.action:
            typer.echo(f"{'':<8} do: {each.action}")
    failed = sum(each.outcome == "failed" for each in results)
    typer.echo(f"{failed} to be corrected" if failed else "ready to be installed")
