"""Array jobs: the limit of pods, and the arguments of the plugin."""

from typing import Any

import pytest
from support.admission import ObjectReaderStub, admit, check, denial, job, queue, task

from batholith.model.arrays import ArrayMembers, parse_indices
from batholith.model.names import MAX_PARALLEL

READER = ObjectReaderStub(queue("default"))


def array(limit: str | None = None, *, replicas: int = 3, minimum: int = 1, **spec: Any) -> Any:
    members = task("t", replicas, minAvailable=minimum)
    created = job(members, **{"minAvailable": minimum, **spec})
    annotations = {} if limit is None else {MAX_PARALLEL: limit}
    return {**created, "metadata": created["metadata"] | {"annotations": annotations}}


@pytest.mark.parametrize(
    ("limit", "minimum", "expected"),
    [
        ("1", 1, ""),
        ("10000", 3, ""),
        ("0", 1, 'Invalid value: "0": must be a whole number above 0'),
        ("-1", 1, "must be a whole number above 0"),
        ("1.5", 1, "must be a whole number above 0"),
        ("", 1, "must be a whole number above 0"),
        ("1", 2, "task t needs minAvailable 2 pods at a time"),
    ],
)
def test_the_limit_is_a_number_that_lets_the_job_start(
    limit: str, minimum: int, expected: str
) -> None:
    check(expected, array(limit, minimum=minimum), READER)


def test_the_limit_is_checked_for_the_gang_of_the_whole_job() -> None:
    tasks = [task("a", 3, minAvailable=1), task("b", 3, minAvailable=1)]
    created = job(*tasks, minAvailable=4)
    limited = {**created, "metadata": created["metadata"] | {"annotations": {MAX_PARALLEL: "1"}}}
    assert "the job needs minAvailable 4 pods at a time" in denial(limited, READER)


def test_a_changed_limit_is_checked_and_a_stored_one_is_not() -> None:
    old, wrong = array("2"), array("none")
    assert "must be a whole number" in denial(wrong, READER, old=old)
    admit(array("3"), READER, old=old)
    labelled = {**wrong, "metadata": wrong["metadata"] | {"labels": {"a": "b"}}}
    admit(labelled, READER, old=wrong)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--indices=0-2"], ""),
        (["--indices=0-9"], ""),
        (["--param=a=1,2", "--param=b=x,y"], ""),
        (["--indices=0,1"], "there are 2 members, and task t has 3 replicas"),
        (["--indices=0-"], "'0-' is no index such as 7, 0-9 or 0-9:2"),
        (["--indices=0-2:0"], "'0-2:0' has no indices"),
        (["--indices=5000000"], "5000000 is more than 4000000"),
        (["--param=a"], "'a' is not NAME=VALUE,VALUE or NAME=FIRST..LAST"),
        (["--param=a b=1"], "'a b' is no name of letters, digits and underscores"),
        (["--param=a=3..1"], "'3..1' has 0 values"),
        (["--param=a=1..1000", "--param=b=1..1000"], "1000000 combinations are more than 100000"),
        (["--param=a=1..3", "--param=a=1"], "two parameters have the same name"),
        (["--what"], "'--what' is neither --indices=… (once) nor --param=NAME=…"),
        ([], "give either --indices or --param"),
    ],
)
def test_the_arguments_of_the_plugin_are_checked(arguments: list[str], expected: str) -> None:
    check(expected, array(plugins={"array": arguments}), READER)


def test_a_task_is_not_scaled_beyond_the_members() -> None:
    plugins = {"array": ["--indices=0-2"]}
    old = admit(array(plugins=plugins), READER)
    new = admit(array(plugins=plugins), READER)
    new["spec"]["tasks"][0]["replicas"] = 4
    assert "there are 3 members, and task t has 4 replicas" in denial(new, READER, old=old)


def test_indices_are_ascending_and_each_once() -> None:
    assert parse_indices("7,1-3,2") == [1, 2, 3, 7]
    assert parse_indices("5-9:2,0") == [0, 5, 7, 9]
    assert ArrayMembers.parse(["--indices=2-10:4"]).step == 4
    assert ArrayMembers.parse(["--indices=7"]).step == 1
