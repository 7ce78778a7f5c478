"""The SDK is light: it can be imported in a notebook without the server's packages."""

import asyncio
import sys

import pytest

pytestmark = pytest.mark.process

HEAVY = (
    "aiohttp",
    "alembic",
    "fastapi",
    "kopf",
    "kubernetes",
    "numpy",
    "pydantic",
    "sqlalchemy",
    "starlette",
    "uvicorn",
    "yaml",
)
CODE = f"""
import sys
import batholith.client
loaded = {{name.partition(".")[0] for name in sys.modules}}
print(sorted(loaded & {set(HEAVY)!r}))
own = {{name.split(".")[1] for name in sys.modules if name.startswith("batholith.")}}
print(sorted(own))
"""


async def test_importing_the_client_loads_nothing_of_the_server() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CODE, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert out.decode().splitlines() == ["[]", "['client', 'model', 'wire']"]
