"""``make crds``: generate the CRDs, with the types of a real API server.

Needs the programs that `tests/realkube/build` builds. Writes package data, `manifests/crds` and
`manifests/training-crds`.
"""

import asyncio
import tempfile
from pathlib import Path

from support import crd_builder
from support.realkube import real_server


async def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        async with real_server(Path(directory)) as server:
            schemas = await crd_builder.read_schemas(server.get)
    crd_builder.write(crd_builder.document(schemas))


if __name__ == "__main__":
    asyncio.run(main())
