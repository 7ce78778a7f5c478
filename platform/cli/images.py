"""``batholith image``: the images that pods of the embedded cluster run."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..local.supervisor.datadir import DataDir, DataDirLockedError
from .cluster import DATA_DIR_ERRORS, resolve_data_dir

if TYPE_CHECKING:
    from ..local.agent.images.store import ImageStore, StoredImage

app = typer.Typer(
    help="Images that pods of the embedded cluster run.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
_GIBIBYTE = 1 << 30
_DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        help="Data directory of the cluster.",
        show_default="$XDG_DATA_HOME/batholith",
    ),
]


@contextmanager
def _store(data: DataDir) -> Iterator["ImageStore"]:
    """Yield the store of a data directory, which is created if missing; report errors."""
    from ..local.agent.images.errors import ImageError
    from ..local.agent.images.store import ImageStore

    try:
        with suppress(DataDirLockedError):  # a cluster is up in it
            data.lock()
            data.unlock()
        store = ImageStore(data.root)
        store.prepare()
        yield store
    except (ImageError, *DATA_DIR_ERRORS) as error:
        text = str(error)
        if isinstance(error, OSError) and error.strerror:
            text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
        typer.echo(f"batholith image: {text}", err=True)
        raise typer.Exit(1) from None


@app.command()
def load(
    source: Annotated[
        Path, typer.Argument(help="OCI layout (directory or archive), or archive of docker save.")
    ],
    name: Annotated[
        str, typer.Option(help="Name of the image, if the archive has another or none.")
    ] = "",
    max_size: Annotated[
        int, typer.Option(min=1, help="Limit of an image's unpacked size, in GiB.")
    ] = 64,
    data_dir: _DataDir = None,
) -> None:
    """Store the images of a file on this machine, so that its pods can run them."""
    from ..local.agent.images.archives import load as load_images
    from ..local.agent.images.unpacking import UnpackLimits

    limits = UnpackLimits(size=max_size * _GIBIBYTE)
    with _store(resolve_data_dir(data_dir)) as store:
        for image in load_images(store, source, name=name, limits=limits):
            typer.echo(f"loaded {image.name}")
            for note in image.notes:
                typer.echo(f"  note: {note}")


@app.command("list")
def list_images(data_dir: _DataDir = None) -> None:
    """List the stored images."""
    with _store(resolve_data_dir(data_dir)) as store:
        rows = [("IMAGE", "ID", "SIZE"), *map(_row, store.images())]
        widths = [max(len(row[column]) for row in rows) for column in range(2)]
        for first, second, third in rows:
            typer.echo(f"{first:<{widths[0]}}  {second:<{widths[1]}}  {third}")


def _row(image: "StoredImage") -> tuple[str, str, str]:
    return image.name, image.id.removeprefix("sha256:")[:12], f"{image.size / (1 << 20):.1f} MiB"


@app.command("rm")
def remove(
    names: Annotated[list[str], typer.Argument(metavar="IMAGE...", help="Names of images.")],
    data_dir: _DataDir = None,
) -> None:
    """Remove images, and layers that no other image has, unless a pod uses them."""
    from ..local.agent.images import references
    from ..local.agent.images.errors import ImageError
    from ..local.agent.pods.image_use import image_uses

    data = resolve_data_dir(data_dir)
    with _store(data) as store:
        for text in names:
            image = store.find(references.parse(text))
            if image is None:
                raise ImageError(f"there is no image {text!r}")
            store.remove(image.name, uses=lambda: image_uses(data.root))
            typer.echo(f"removed {image.name}")
