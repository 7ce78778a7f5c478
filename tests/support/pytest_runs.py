"""Runs of pytest in a separate process, on files that a test wrote."""

import asyncio
import sys
from pathlib import Path


async def passes(directory: Path, *options: str) -> str:
    """Run the tests in *directory*, which must pass; return what pytest printed."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pytest", "-q", *options, str(directory)),
        cwd=directory,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await process.communicate()
    assert process.returncode == 0, out.decode()
    return out.decode()
