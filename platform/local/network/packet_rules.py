"""Names and programs of the rules with which nft filters and translates packets of pods."""

import hashlib
import subprocess
from pathlib import Path

from .node_namespace import find_program, passing_rights

PREFIX, LINK_PREFIX = "batholith-", "bth"
_MARKER = "pod-network"
_TIMEOUT = 30.0


class NetworkNames:
    """Names on the machine that contain a tag of a data directory.

    So what a process left that was killed is found again, and clusters on one machine do not
    disturb each other.
    """

    def __init__(self, data_dir: Path) -> None:
        self.marker = data_dir / _MARKER
        """File that exists while the network of the machine is changed."""
        tag = hashlib.blake2b(str(data_dir.resolve()).encode(), digest_size=2).hexdigest()
        self.namespaces = f"{PREFIX}{tag}-"
        """Begin of the names of pods' namespaces."""
        self.pods_table = f"{PREFIX}{tag}"
        """The agent's table of nft."""
        self.services_table = f"{PREFIX}{tag}-services"
        """The Service proxy's table of nft."""
        self.links = f"{LINK_PREFIX}{tag}"
        """Begin of the names of the devices that lead to pods."""

    def replace_table(self, table: str, content: str) -> None:
        """Replace a table of nft with one that has this *content*, at once.

        Raises:
            OSError: that is not possible.
        """
        self.marker.touch()
        run_program("nft", "-f", "-", text=f"{_deletion(table)}table ip {table} {{\n{content}}}\n")

    def delete_table(self, table: str) -> None:
        """Delete a table of nft, if it exists.

        Raises:
            OSError: that is not possible.
        """
        run_program("nft", "-f", "-", text=_deletion(table))


def _deletion(table: str) -> str:
    """Return rules that delete a table, whether it exists or not."""
    return f"table ip {table} {{}}\ndelete table ip {table}\n"


def run_program(*argv: str, text: str = "") -> str:
    """Run a program, with *text* as its input; return its output.

    Raises:
        OSError: it does not exist or it failed; the error contains what it printed.
    """
    try:
        with passing_rights():
            ended = subprocess.run(  # noqa: S603 - programs that are named here, without a shell
                argv,
                executable=find_program(argv[0]),
                input=text,
                capture_output=True,
                text=True,
                timeout=_TIMEOUT,
            )
    except subprocess.TimeoutExpired as error:
        raise OSError(f"{argv[0]} took longer than {_TIMEOUT:g} s") from error
    if ended.returncode != 0:
        message = " ".join((ended.stderr or ended.stdout).split())
        raise OSError(f"{' '.join(argv)}: {message or f'exit code {ended.returncode}'}")
    return ended.stdout
