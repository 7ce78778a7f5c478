"""``make api-types``: makes the table of the built-in types anew, after a real API server.

Needs Go and the programs that `tests/realkube/build` makes. Writes package data.
"""

import asyncio
import tempfile
from pathlib import Path

from support import api_types
from support.realkube import real_server


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with real_server(Path(folder)) as server:
            made = await api_types.generate(server)
    for name, text in made.items():
        (api_types.PACKAGED / name).write_text(text)


if __name__ == "__main__":
    asyncio.run(main())
