"""The tasks that docs/README.md begins with, as users run them on `batholith up`."""

from pathlib import Path

import pytest
from support.embedded_cluster import embedded_cluster, run
from support.kubectl import needs_kubectl

pytestmark = [pytest.mark.process, pytest.mark.timeout(500)]

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


async def test_scripts_sweeps_and_data_run_as_described(tmp_path: Path) -> None:
    needs_kubectl()
    async with embedded_cluster(tmp_path / "data") as cluster:

        async def kubectl(*arguments: str) -> str:
            result = await run("kubectl", f"--kubeconfig={cluster.data_dir.kubeconfig}", *arguments)
            assert result.code == 0, f"kubectl {' '.join(arguments)}: {result.err}{result.out}"
            return result.out

        async def apply(name: str) -> None:
            assert "Warning" not in await kubectl("apply", "-f", str(EXAMPLES / name))

        async def wait_completed(job: str) -> None:
            condition = "--for=jsonpath={.status.state.phase}=Completed"
            await kubectl("wait", "--timeout=200s", condition, f"vcjob/{job}")

        script = tmp_path / "job.py"
        script.write_text("print(6 * 7)\n")
        await kubectl("create", "configmap", "script", f"--from-file={script}")
        for name in ("script.yaml", "sweep.yaml", "data.yaml"):
            await apply(name)
        await wait_completed("script")
        assert await kubectl("logs", "script-main-0") == "42\n"
        await kubectl("wait", "--timeout=200s", "--for=condition=complete", "job/sweep")
        lines = (await kubectl("logs", "-l", "job-name=sweep", "--tail=-1")).splitlines()
        assert len(set(lines)) == 6
        assert "rate=0.01 depth=4 loss=0.040" in lines
        await wait_completed("data")
        assert (await kubectl("logs", "data-main-0")).strip() == "3"
