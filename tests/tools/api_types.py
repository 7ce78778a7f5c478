"""``make api-types``: generate the table of the built-in types from a real API server.

Needs Go and the programs that `tests/realkube/build` builds. Writes package data.
"""

import asyncio
import tempfile
from pathlib import Path

from support import api_types
from support.realkube import real_server


async def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        async with real_server(Path(directory)) as server:
            files = await api_types.generate(server)
    for path, text in files.items():
        path.write_text(text)


if __name__ == "__main__":
    asyncio.run(main())
