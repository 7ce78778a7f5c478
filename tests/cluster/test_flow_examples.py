"""JobFlows as users run them: by kubectl, on `batholith up`, with real processes and requests."""

from pathlib import Path

import pytest
from support.embedded_cluster import embedded_cluster, run
from support.kubectl import needs_kubectl

pytestmark = [pytest.mark.process, pytest.mark.timeout(500)]

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "jobflow.yaml"


def test_the_page_shows_the_flow_of_the_example() -> None:
    """The page's manifest is the last one of the example."""
    page = (EXAMPLE.parents[1] / "jobflows.md").read_text()
    shown = page.partition("```yaml\n")[2].partition("```")[0]
    assert EXAMPLE.read_text().rpartition("---\n")[2] == shown


async def test_the_example_runs_to_its_end(tmp_path: Path) -> None:
    """Its third Job starts once the second one serves, which ends later."""
    needs_kubectl()
    async with embedded_cluster(tmp_path / "data") as cluster:

        async def kubectl(*arguments: str) -> str:
            result = await run("kubectl", f"--kubeconfig={cluster.data_dir.kubeconfig}", *arguments)
            assert result.code == 0, f"kubectl {' '.join(arguments)}: {result.err}{result.out}"
            return result.out

        async def wait(what: str, phase: str) -> None:
            if not what.startswith("jf/"):  # not found is an error, and a flow creates it later
                await kubectl("wait", "--timeout=200s", "--for=create", what)
            condition = f"--for=jsonpath={{.status.state.phase}}={phase}"
            await kubectl("wait", "--timeout=200s", condition, what)

        assert "Warning" not in await kubectl("apply", "-f", str(EXAMPLE))
        created = await kubectl("wait", "--timeout=200s", "--for=create", "vcjob/steps-query")
        assert "condition met" in created
        passed = await kubectl("get", "jf/steps", "-o=jsonpath={.status.conditions.steps-serve}")
        assert '"passedProbes":["query"]' in passed or '"phase":"Running"' in passed
        await wait("vcjob/steps-report", "Completed")
        assert await kubectl("logs", "steps-report-main-0") == "the report is done\n"
        assert await kubectl("logs", "steps-query-main-0") == "a step is done\n"
        await wait("jf/steps", "Succeed")
        columns, row = (await kubectl("get", "jf")).splitlines()
        assert columns.split() == ["NAME", "STATUS", "AGE"]
        assert row.split()[:2] == ["steps", "Succeed"]
        templates = await kubectl("get", "jt/query", "-o=jsonpath={.status.jobDependsOnList}")
        assert templates == '["steps-query"]'
        await kubectl("delete", "jf/steps", "--wait")
        await kubectl("wait", "--timeout=200s", "--for=delete", "vcjob", "--all")
