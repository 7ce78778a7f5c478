"""``batholith submit`` on a cluster in the process of the test, and on one of ``batholith up``."""

import asyncio
import sys
from pathlib import Path

import pytest
import yaml
from support.embedded_cluster import ProcessResult, embedded_cluster, run
from support.polling import wait_for
from support.shell import Shell

pytestmark = pytest.mark.asyncio(loop_scope="module")

SCRIPT = """#!/bin/sh
#SBATCH --job-name=count --ntasks=2
#BATHOLITH --image=busybox
exit 0
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "count.sh"
    path.write_text(SCRIPT)
    return str(path)


@pytest.fixture
def wrong_script(tmp_path: Path) -> str:
    path = tmp_path / "wrong.sh"
    path.write_text("#!/bin/sh\n#SBATCH --ntasks=x\n#SBATCH -q z\n")
    return str(path)


@pytest.mark.cluster
async def test_a_script_becomes_a_job_with_its_arguments(shell: Shell, script: str) -> None:
    name = (await shell.out_of_program("submit", script, "--not-an-option", "x y")).strip()
    assert name.startswith("jobs/count-")
    manifest = await asyncio.to_thread(shell.client.jobs.manifest, name.removeprefix("jobs/"))
    (task,) = manifest["spec"]["tasks"]
    (container,) = task["template"]["spec"]["containers"]
    assert container["command"][4:] == ["--not-an-option", "x y"]
    assert container["resources"]["requests"]["cpu"] == "2"


@pytest.mark.cluster
async def test_a_dry_run_prints_the_manifest_and_creates_nothing(shell: Shell, script: str) -> None:
    out = await shell.out_of_program("submit", "--dry-run", "--time=5", script)
    manifest = yaml.safe_load(out)
    assert manifest["metadata"]["annotations"] == {"batholith.io/time-limit": "300s"}
    assert await asyncio.to_thread(lambda: list(shell.client.jobs.list())) == []
    refused = await shell.run_program("submit", "--dry-run", "--partition=absent", script)
    assert (refused.exit_code, "absent" in refused.stderr) == (1, True)


@pytest.mark.cluster
async def test_each_problem_is_a_line_and_nothing_is_submitted(
    shell: Shell, wrong_script: str
) -> None:
    result = await shell.run_program("submit", wrong_script)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.splitlines() == [
        "batholith: line 2: #SBATCH --ntasks: 'x' is no whole number",
        "batholith: line 3: #SBATCH -q is not supported: use --priority-class",
    ]
    assert await asyncio.to_thread(lambda: list(shell.client.jobs.list())) == []


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["absent.sh"], "cannot read absent.sh: No such file or directory; a command is preceded"),
        (["--workdir-rw", "--", "true"], "--workdir-rw is not supported: only a cluster of"),
        (["--", "true"], "--image is missing"),
        (["--wrap", "true", "script.sh"], "give either --wrap or a script"),
    ],
)
async def test_what_cannot_be_submitted_is_explained(
    shell: Shell, arguments: list[str], message: str
) -> None:
    result = await shell.run_program("submit", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr


@pytest.mark.cluster
async def test_the_short_option_of_the_number_of_tasks_is_not_taken_for_a_namespace(
    shell: Shell,
) -> None:
    result = await shell.run_program(
        "submit", "--image=x", "-n", "4", "--", "true", namespace=False
    )
    assert (result.exit_code, "write --ntasks=4" in result.stderr) == (2, True)


@pytest.mark.cluster
async def test_lines_for_the_shell_are_a_script(shell: Shell) -> None:
    out = await shell.out_of_program(
        "submit", "--dry-run", "--image=x", "--wrap", "echo $HOME | cat"
    )
    (task,) = yaml.safe_load(out)["spec"]["tasks"]
    (container,) = task["template"]["spec"]["containers"]
    variables = {each["name"]: each.get("value") for each in container["env"]}
    assert variables["BATHOLITH_SCRIPT"].splitlines()[-1] == "echo $$HOME | cat"


EVERYTHING = r"""#!/bin/bash
#SBATCH --job-name="every thing"
#SBATCH --ntasks=2 --cpus-per-task=2
#SBATCH --output=%x-%j.out --error=errors.txt --open-mode=append
#SBATCH --export=GREETING="a b",PRICE='$5'
echo "$GREETING|$PRICE|$1|$#|$SLURM_JOB_NAME|$SLURM_NTASKS|$SLURM_CPUS_PER_TASK|$(pwd)"
echo "$(basename "$0") $SLURM_JOB_NODELIST $(hostname)" >&2
cat <<'EOF'
#SBATCH --not-read
'single' "double" $HOME `date` \n
EOF
exit 7
"""


@pytest.mark.process
@pytest.mark.timeout(300)
async def test_scripts_run_as_they_are_in_the_working_directory(tmp_path: Path) -> None:
    work, root = tmp_path / "work", tmp_path / "data"
    work.mkdir()
    work.chmod(0o777)
    (work / "everything.sh").write_text(EVERYTHING)
    (work / "count.py").write_text("#!/usr/bin/env python3\nimport sys\nprint(len(sys.argv))\n")
    async with embedded_cluster(root, "--mount", str(work)):
        failed = await submit(work, root, "--wait", "--workdir-rw", "everything.sh", "x  y")
        assert failed.code == 7, failed.err
        name, number = failed.out.strip().removeprefix("jobs/").rsplit("-", 1)
        assert name == "every-thing"
        lines = (work / f"every thing-{number}.out").read_text().splitlines()
        assert lines == [
            f"a b|$5|x  y|1|every thing|2|2|{work}",
            "#SBATCH --not-read",
            "'single' \"double\" $HOME `date` \\n",
        ]
        host = f"every-thing-{number}-main-0"
        assert (work / "errors.txt").read_text() == f"slurm_script {host} {host}\n"
        python = await submit(work, root, "--wait", "count.py", "a", "b")
        assert (python.code, python.out.splitlines()[1:]) == (0, ["3"])
        read_only = await submit(work, root, "--wait", "--", "touch", "file")
        assert read_only.code == 1, read_only.out
        assert not (work / "file").exists()
        gang = await submit(
            work, root, "--wait", "--ntasks=2", "--", "sh", "-c", 'echo "rank $SLURM_PROCID"'
        )
        assert sorted(line.split("] ")[1] for line in gang.out.splitlines()[1:]) == [
            "rank 0",
            "rank 1",
        ]
        elsewhere = await submit(tmp_path, root, "--", "true")
        assert (elsewhere.code, "pods may not mount" in elsewhere.err) == (2, True)


MEMBER = """#!/bin/sh
#SBATCH --array=3,1,10-14:2%2 --output=/dev/null
#BATHOLITH --workdir-rw
echo "start $SLURM_ARRAY_TASK_ID" >> members
sleep 0.3
echo "end $SLURM_ARRAY_TASK_ID" >> members
"""


@pytest.mark.process
@pytest.mark.timeout(300)
async def test_the_limit_of_an_array_holds_although_the_controllers_are_killed(
    tmp_path: Path,
) -> None:
    work, root = tmp_path / "work", tmp_path / "data"
    work.mkdir()
    work.chmod(0o777)
    (work / "member.sh").write_text(MEMBER)
    members = work / "members"
    members.touch()
    members.chmod(0o666)
    async with embedded_cluster(root, "--mount", str(work)) as cluster:
        waiting = asyncio.create_task(submit(work, root, "--wait", "member.sh"))
        await wait_for(lambda: "end" in members.read_text())
        cluster.kill("controllers")
        result = await waiting
        assert result.code == 0, result.err
    lines = [line.split() for line in members.read_text().splitlines()]
    assert sorted(int(index) for what, index in lines if what == "start") == [1, 3, 10, 12, 14]
    running = 0
    for what, _ in lines:
        running += 1 if what == "start" else -1
        assert running <= 2


async def submit(directory: Path, root: Path, *arguments: str) -> ProcessResult:
    """``batholith submit`` in a directory."""
    command = [sys.executable, "-m", "batholith", "submit", "--data-dir", str(root), *arguments]
    return await run("env", "-C", str(directory), *command)
