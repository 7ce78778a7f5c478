"""The page of the SDK, executed on a cluster that was started as the page describes."""

import asyncio
import re
import sys
from pathlib import Path

import pytest
from support.embedded_cluster import embedded_cluster

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "python-sdk.md").read_text()


async def test_the_examples_of_the_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    script = tmp_path / "page.py"
    script.write_text("\n".join([*blocks, "client.close()\n"]))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    (tmp_path / "data").mkdir()
    async with embedded_cluster(tmp_path / "data" / "batholith"):
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-W", "error", str(script)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        out, _ = await process.communicate()
    text = out.decode()
    assert process.returncode == 0, text
    lines = text.splitlines()
    assert lines[0] == "Completed"
    # Lines of several pods are in the order of their times, and the pods run concurrently.
    assert sorted(lines[1:3]) == ["[hello-greeter-0] hello", "[hello-greeter-1] hello"]
    assert "added train Running" in lines
    assert "404 job 'absent' not found in namespace 'default'" in lines
    assert lines[-2:] == ["[later-main-0] done", "Completed"]
