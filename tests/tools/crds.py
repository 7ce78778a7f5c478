"""``make crds``: makes the definitions anew, with the types of a real API server.

Needs the programs that `tests/realkube/build` makes. Writes package data and `manifests/crds`.
"""

import asyncio
import tempfile
from pathlib import Path

from support import crd_builder
from support.realkube import real_server


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with real_server(Path(folder)) as server:
            document = await server.get("/openapi/v3/api/v1")
    crd_builder.write(crd_builder.fill_in_types(document))


if __name__ == "__main__":
    asyncio.run(main())
