"""``batholith submit`` on a cluster in the process of the test, and on one of ``batholith up``."""

import asyncio
import json
import os
import re
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import yaml
from support.embedded_cluster import (
    EmbeddedCluster,
    ProcessResult,
    embedded_cluster,
    run,
)
from support.polling import wait_for, wait_until_true
from support.shell import Shell

from batholith.model.names import (
    ACCOUNT,
    JOBS,
    PERSISTENTVOLUMECLAIMS,
    PODGROUPS,
    PODS,
    QUEUES,
    WORKDIR_CLAIM,
    Resource,
)

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
        (["--workdir-rw", "--", "true"], "--workdir-rw is not supported: the job has a copy"),
        (
            ["--no-workdir", "--chdir=src", "--image=x", "--", "true"],
            "--chdir: a directory of the image needs its whole path",
        ),
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


@pytest.mark.process
@pytest.mark.cluster
async def test_a_command_is_notified_while_the_command_line_waits(
    shell: Shell, script: str, tmp_path: Path
) -> None:
    events = tmp_path / "events"
    hook = tmp_path / "hook"
    hook.write_text(f'#!/bin/sh\necho "$1 $BATHOLITH_EVENT $BATHOLITH_PHASE" >> {events}\nexit 3\n')
    hook.chmod(0o755)
    notify = f"{hook} 'a b'"
    refused = await shell.run_program("submit", "--notify", notify, script)
    assert (refused.exit_code, "use --wait" in refused.stderr) == (2, True)
    await shell.running("train")
    waiting = asyncio.create_task(shell.run("wait", "train", "--notify", notify))

    async def has_started() -> bool:
        return events.exists()

    await wait_until_true(has_started)
    # Not by a command: two of them in one process would share the standard output.
    await asyncio.to_thread(shell.client.jobs.terminate, "train")
    result = await waiting
    assert result.exit_code == 1
    assert events.read_text() == "a b start Running\na b end Terminated\n"
    assert "exited with 3" in result.stderr


@pytest.mark.cluster
async def test_the_image_is_by_default_that_of_the_queue(shell: Shell) -> None:
    name = f"queue-{shell.namespace}"
    annotations = {"batholith.io/default-image": "registry.example/python:3"}
    body = {"metadata": {"name": name, "annotations": annotations}, "spec": {"weight": 1}}
    await shell.rest.cluster.create(QUEUES, body)
    arguments = ("submit", "--dry-run", "--partition", name, "--", "true")
    manifest = yaml.safe_load(await shell.out_of_program(*arguments))
    pod = manifest["spec"]["tasks"][0]["template"]["spec"]
    assert pod["containers"][0]["image"] == "registry.example/python:3"
    missing = await shell.run_program("submit", "--dry-run", "--", "true")
    assert (missing.exit_code, "--image is missing" in missing.stderr) == (2, True)


@pytest.mark.cluster
async def test_a_url_that_would_not_be_notified_is_refused(shell: Shell, script: str) -> None:
    result = await shell.run_program("submit", "--notify", "https://example.org/", script)
    assert result.exit_code == 1
    assert "metadata.annotations[batholith.io/notify]: this installation sends no" in result.stderr


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


@pytest.mark.cluster
async def test_a_sweep_has_a_member_for_each_combination(shell: Shell) -> None:
    arguments = ("--param", "lr=0.1,0.01", "--param", "seed=1..5", "--max-parallel", "3")
    out = await shell.out_of_program(
        "sweep", "--dry-run", "--image=x", *arguments, "--", "train", "{lr}/{seed}", "{other}", "$x"
    )
    manifest = yaml.safe_load(out)
    (task,) = manifest["spec"]["tasks"]
    (container,) = task["template"]["spec"]["containers"]
    assert container["command"][1:] == [
        "$(BATHOLITH_PARAM_lr)/$(BATHOLITH_PARAM_seed)",
        "{other}",
        "$$x",
    ]
    assert manifest["spec"]["plugins"]["array"] == ["--param=lr=0.1,0.01", "--param=seed=1..5"]
    assert (task["replicas"], manifest["spec"]["minSuccess"]) == (10, 10)
    assert manifest["metadata"]["annotations"] == {"batholith.io/max-parallel": "3"}


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--param is missing"),
        (("--param", "lr"), "--param: 'lr' is not NAME=VALUE,VALUE"),
        (("--param", "a=1", "--array=0-3"), "--array: a sweep is an array by its parameters"),
        (("--param", "a=1..2", "--ntasks=2"), "a member of an array has one pod, not 2"),
    ],
)
async def test_a_sweep_that_is_wrong_is_refused(
    shell: Shell, arguments: tuple[str, ...], message: str
) -> None:
    result = await shell.run_program("sweep", "--image=x", *arguments, "--", "train")
    assert (result.exit_code, message in result.stderr) == (2, True), result.stderr


@pytest.mark.cluster
async def test_a_job_waits_for_one_that_is_given_by_its_number_or_name(shell: Shell) -> None:
    sleep = ("--image=x", "--", "sleep", "600")
    first = (await shell.out_of_program("submit", "-J", "first", *sleep)).strip()
    name, number = first.removeprefix("jobs/"), first.rpartition("-")[2]
    given = f"--dependency=afterok:{number}:{first},afterany:{name}"
    second = (await shell.out_of_program("submit", given, *sleep)).strip()
    manifest = await asyncio.to_thread(shell.client.jobs.manifest, second.removeprefix("jobs/"))
    expected = f"afterok:{name},afterok:{name},afterany:{name}"
    assert manifest["metadata"]["annotations"]["batholith.io/depends-on"] == expected

    async def explained() -> bool:
        return f"waits for afterok:{name} (" in await shell.out("why", second)

    await wait_until_true(explained)
    await shell.out("cancel", first, "--wait", "60")
    result = await shell.run("wait", second, "--for", "Failed", "--timeout", "60")
    assert result.exit_code == 0, result.output
    assert "can no longer be met" in (await shell.out("why", second))
    missing = await shell.run_program("submit", "--dependency=afterok:12345", *sleep)
    assert missing.exit_code == 2
    assert missing.stderr == "batholith: --dependency: there is no job '12345'\n"


@pytest.mark.cluster
async def test_a_job_that_is_submitted_held_starts_once_it_is_released(shell: Shell) -> None:
    job = (await shell.out_of_program("submit", "-H", "--image=x", "--", "sleep", "600")).strip()
    await shell.out("wait", job, "--for", "Aborted", "--timeout", "60")
    assert "is held: it has not started" in (explained := await shell.out("why", job))
    assert "use `batholith release`" in explained
    assert (await shell.out("release", job)).startswith(f"{job}: ")
    await shell.out("wait", job, "--for", "Running", "--timeout", "60")


@pytest.mark.cluster
async def test_a_job_runs_again_under_a_new_name_also_when_it_was_deleted(shell: Shell) -> None:
    arguments = ("--image=x", "--no-workdir", "--time=5", "--ntasks=2", "-J", "again")
    program = ("--", "sleep", "600")
    first = (await shell.out_of_program("submit", *arguments, *program)).strip()
    second = (await shell.out("rerun", first)).strip()
    manifests = [
        await asyncio.to_thread(shell.client.jobs.manifest, name.removeprefix("jobs/"))
        for name in (first, second)
    ]
    numbers = [name.rpartition("-")[2] for name in (first, second)]
    assert numbers[0] != numbers[1]
    expected = json.dumps(manifests[0]["spec"]).replace(numbers[0], numbers[1])
    assert json.loads(expected) == manifests[1]["spec"]
    limit = "batholith.io/time-limit"
    assert manifests[1]["metadata"]["annotations"][limit] == "300s"
    assert manifests[1]["metadata"]["labels"]["batholith.io/job-id"] == numbers[1]
    await shell.out("cancel", "--delete", first)

    async def recorded() -> bool:
        found = await shell.run("rerun", "--dry-run", first)
        return found.exit_code == 0

    await wait_until_true(recorded)
    third = await shell.run("rerun", "--dry-run", "-o", "json", first.removeprefix("jobs/"))
    assert "annotations, such as a time limit, are not in the history" in third.stderr
    again = json.loads(third.stdout)
    assert again["spec"]["tasks"][0]["replicas"] == 2
    missing = await shell.run("rerun", "absent")
    assert (missing.exit_code, "exists or is in the history" in missing.stderr) == (4, True)


@pytest.mark.cluster
async def test_a_job_of_kubernetes_runs_again(shell: Shell) -> None:
    manifest = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "plain"},
        "spec": {
            "suspend": True,
            "template": {
                "spec": {
                    "restartPolicy": "Never",
                    "containers": [{"name": "main", "image": "busybox", "command": ["true"]}],
                }
            },
        },
    }
    await shell.submit(manifest)
    name = (await shell.out("rerun", "batchjobs/plain")).strip()
    assert name.startswith("batchjobs/plain-")


@pytest.mark.cluster
async def test_an_account_is_on_all_objects_of_the_job_and_in_its_history(shell: Shell) -> None:
    options = ("--account=physics", "--image=busybox", "--ntasks=2")
    name = (await shell.out_of_program("submit", *options, "--", "sleep", "600")).strip()
    await shell.out_of_program("submit", "--image=busybox", "--", "true")
    await shell.out("wait", name, "--for", "Running")
    job = await asyncio.to_thread(shell.client.jobs.get, name.removeprefix("jobs/"))
    cluster, namespace = shell.rest.cluster, shell.namespace
    podgroup = await cluster.get(PODGROUPS, f"{job.name}-{job.uid}", namespace=namespace)
    pods = cluster.pods_of(job.name, namespace=namespace)
    accounts = [each["metadata"]["labels"][ACCOUNT] for each in (podgroup, *pods)]
    assert accounts == ["physics"] * 3
    assert await shell.out("jobs", "--account", "physics", "-o", "name") == f"{name}\n"
    assert await shell.out("jobs", "--account", "physics", "-l", "a=b", "-o", "name") == ""
    refused = await shell.run("jobs", "--account", "a,b=c")
    assert (refused.exit_code, "'a,b=c' is no account" in refused.stderr) == (2, True)

    async def recorded() -> bool:
        records = await shell.out("history", "--account", "physics", "--format", "JobName,Account")
        used = await shell.out("usage", "--by", "account", "-o", "name")
        return "physics" in records and "physics" in used.split()

    await wait_until_true(recorded)
    assert await shell.out("history", "--account", "physics", "-o", "name") == f"{name}\n"
    totals = json.loads(await shell.out("usage", "--account", "physics", "-o", "json"))["series"]
    assert [each["name"] for each in totals] == ["default"]


@pytest.mark.cluster
async def test_usage_is_shown_by_queue_and_user(shell: Shell) -> None:
    await shell.running("train")
    await shell.out("cancel", "--delete", "train")

    async def counted() -> bool:
        return "default" in await shell.out("usage", "-o", "csv")

    await wait_until_true(counted)
    header, *_ = (await shell.out("usage", "--by", "user", "-o", "csv")).splitlines()
    assert header == "user,cpu seconds"
    found = json.loads(await shell.out("usage", "-o", "json", "--since", "1h"))
    assert found["by"] == "queue"
    assert (await shell.run("usage", "--since", "soon")).exit_code == 2


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


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def plain(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedCluster]:
    """A cluster whose pods mount no directory of the machine."""
    async with embedded_cluster(tmp_path_factory.mktemp("plain") / "data") as cluster:
        yield cluster


async def interruptible(*command: str) -> asyncio.subprocess.Process:
    """Start a command that can be sent signals."""
    return await asyncio.create_subprocess_exec(
        # A shell starts programs in the background with these ignored, the tests too.
        "env", "--default-signal=INT,QUIT", *command,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip


@pytest.mark.process
@pytest.mark.timeout(300)
async def test_a_command_has_the_output_and_the_exit_code_of_its_job(
    plain: EmbeddedCluster,
) -> None:
    root = str(plain.data_dir.root)
    command = [sys.executable, "-m", "batholith", "run", "--data-dir", root]
    failed = await run(*command, "--no-workdir", "--", "sh", "-c", "echo out; exit 9")
    assert (failed.code, failed.out) == (9, "out\n")


@pytest.mark.process
@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_command_that_is_interrupted_is_cancelled(
    plain: EmbeddedCluster, number: signal.Signals
) -> None:
    root = str(plain.data_dir.root)
    command = [sys.executable, "-m", "batholith", "run", "--data-dir", root]
    process = await interruptible(
        *command, "--no-workdir", "--", "sh", "-c", "echo started; sleep 600"
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"started\n"
    process.send_signal(number)
    _, errors = await process.communicate()
    assert process.returncode == 128 + number, errors
    assert errors.decode().splitlines()[-1].endswith(": Terminated")


@pytest.mark.process
@pytest.mark.timeout(300)
async def test_a_submission_that_waits_names_its_job_when_it_is_interrupted(
    plain: EmbeddedCluster,
) -> None:
    root = str(plain.data_dir.root)
    command = [sys.executable, "-m", "batholith", "submit", "--wait", "--data-dir", root]
    process = await interruptible(*command, "--no-workdir", "--", "sh", "-c", "echo on; sleep 600")
    assert process.stdout is not None
    name = (await process.stdout.readline()).decode().strip()
    assert await process.stdout.readline() == b"on\n"
    process.send_signal(signal.SIGINT)
    _, errors = await process.communicate()
    assert (process.returncode, f"{name} continues" in errors.decode()) == (130, True)
    cancelled = await run(*command[:3], "cancel", "--delete", "--data-dir", root, name)
    assert cancelled.code == 0, cancelled.out


@pytest.mark.process
@pytest.mark.timeout(300)
async def test_signals_for_programs_are_forwarded_to_the_pods(plain: EmbeddedCluster) -> None:
    script = "trap 'echo one' USR1; trap 'echo two' USR2; trap 'echo three; exit 4' QUIT"
    script += "; echo started; while :; do sleep 0.1; done"
    command = [sys.executable, "-m", "batholith", "run", "--data-dir", plain.data_dir.root]
    process = await interruptible(*map(str, command), "--no-workdir", "--", "sh", "-c", script)
    assert process.stdout is not None
    assert await process.stdout.readline() == b"started\n"
    for number, text in (("USR1", b"one\n"), ("USR2", b"two\n"), ("QUIT", b"three\n")):
        process.send_signal(signal.Signals[f"SIG{number}"])
        assert await process.stdout.readline() == text
    _, errors = await process.communicate()
    assert process.returncode == 4, errors


@pytest.mark.process
@pytest.mark.timeout(300)
async def test_the_working_directory_travels_in_a_claim(
    plain: EmbeddedCluster, tmp_path: Path
) -> None:
    work, root = tmp_path / "work", plain.data_dir.root
    work.mkdir()
    (work / "train.py").write_text("print(42)\n")
    (work / "noise").write_bytes(os.urandom(2 << 20))  # more than ConfigMaps may have
    (work / "left-out").write_text("x")
    (work / ".batholithignore").write_text("left-*\n")
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    await plain.client.create(
        PERSISTENTVOLUMECLAIMS, {"metadata": {"name": "work"}, "spec": spec}, namespace="default"
    )
    annotation = {"metadata": {"annotations": {WORKDIR_CLAIM: "work"}}}
    await plain.client.patch(QUEUES, "default", annotation)

    def stored() -> list[str]:
        return [path.parent.name for path in root.glob("volumes/*/.batholith/*/*/archive")]

    show = 'ls -A; cat train.py; echo "$(pwd)"'
    done = await submit_packed(work, root, "--wait", "--ntasks=2", "--", "sh", "-c", show)
    assert done.code == 0, done.err
    name, *lines = done.out.splitlines()
    assert sorted(line.split("] ")[1] for line in lines) == sorted(
        2 * [".batholithignore", "noise", "train.py", "print(42)", str(work)]
    )
    name = name.removeprefix("jobs/")
    assert stored() == [name]
    pods = await plain.client.list(PODS, namespace="default", view=dict)
    assert f"{name}-workdir" not in [each["metadata"]["name"] for each in pods.items]

    await plain.client.delete(JOBS, name, namespace="default")
    await wait_until_true(lambda: _exist(plain, JOBS, name, count=0))
    held = await submit_packed(work, root, "--workdir-claim=work", "--hold", "--", "true")
    assert held.code == 0, held.err
    assert stored() == [held.out.strip().removeprefix("jobs/")]


@pytest.mark.soak
@pytest.mark.process
@pytest.mark.timeout(300)
async def test_a_submission_to_a_claim_that_fails_or_is_interrupted_leaves_nothing(
    plain: EmbeddedCluster, tmp_path: Path
) -> None:
    bound = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    await plain.client.create(
        PERSISTENTVOLUMECLAIMS, {"metadata": {"name": "full"}, "spec": bound}, namespace="default"
    )
    options = ("--hold", "--workdir-claim=full", "--", "true")
    assert (await submit_packed(tmp_path, plain.data_dir.root, *options)).code == 0
    (uid,) = plain.data_dir.root.glob("volumes/default_full_*/.batholith/*")
    shutil.rmtree(uid)
    uid.write_text("no directory")
    refused = await submit_packed(tmp_path, plain.data_dir.root, *options)
    assert refused.code == 1
    assert re.search(r"claim full: mkdir: .*; jobs/true-\d+ is deleted again", refused.err)
    spec = {"accessModes": ["ReadWriteMany"], "storageClassName": "absent"}
    spec["resources"] = {"requests": {"storage": "1Gi"}}  # type: ignore[assignment]
    await plain.client.create(
        PERSISTENTVOLUMECLAIMS, {"metadata": {"name": "never"}, "spec": spec}, namespace="default"
    )
    process = await interruptible(
        "env", "-C", str(tmp_path), *packed_options(plain.data_dir.root),
        "--job-name=interrupted", "--workdir-claim=never", "--", "true",
    )  # fmt: skip
    await wait_until_true(lambda: _exist(plain, PODS, "interrupted"))
    process.send_signal(signal.SIGINT)
    await process.communicate()
    assert process.returncode == 130
    await wait_until_true(lambda: _exist(plain, JOBS, "interrupted", count=0))
    await wait_until_true(lambda: _exist(plain, PODS, "interrupted", count=0))


async def _exist(
    cluster: EmbeddedCluster, resource: Resource, prefix: str, *, count: int = 1
) -> bool:
    found = await cluster.client.list(resource, namespace="default", view=dict)
    names: list[str] = [each["metadata"]["name"] for each in found.items]
    return sum(name.startswith(prefix) for name in names) == count


def packed_options(root: Path) -> list[str]:
    given = ["--kubernetes", "--kubeconfig", str(root / "kubeconfig"), "--image", "busybox"]
    return [sys.executable, "-m", "batholith", "submit", *given]


async def submit_packed(directory: Path, root: Path, *arguments: str) -> ProcessResult:
    """``batholith submit --kubernetes`` in a directory."""
    return await run("env", "-C", str(directory), *packed_options(root), *arguments)


async def submit(directory: Path, root: Path, *arguments: str) -> ProcessResult:
    """``batholith submit`` in a directory."""
    command = [sys.executable, "-m", "batholith", "submit", "--data-dir", str(root), *arguments]
    return await run("env", "-C", str(directory), *command)
