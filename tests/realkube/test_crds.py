"""Our definitions on a real API server, and error messages of both servers."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support import crd_builder
from support.api_servers import ServerFactory
from support.embedded_apiserver import DEFINITIONS, FOOS, Server, definition
from support.kubectl import Kubectl, needs_kubectl
from support.realkube import real_server

from batholith.model import crds
from batholith.model.names import JOBS

Json = dict[str, Any]

ANNOTATION = "kubectl.kubernetes.io/last-applied-configuration"
LIMIT = 262_144
"""Bytes that the annotations of an object may have in all."""

PATH = JOBS.path("default")
TEMPLATE = "spec.tasks[0].template"
MAIN = f"{TEMPLATE}.spec.containers[0]"
EITHER: list[Json] = [{"type": "integer"}, {"type": "string"}]


@pytest.fixture
async def server(servers: ServerFactory, tmp_path: Path) -> AsyncIterator[Server]:
    async with servers.start(tmp_path, crds=crds.load()) as started:
        yield started


def definition_with(properties: Json) -> Json:
    """A definition whose spec has some properties."""
    created = definition()
    openapi = created["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    openapi["properties"]["spec"] = {"type": "object", "properties": properties}
    return created


SCHEMA: Json = {
    "whole": {"type": "integer"},
    "long": {"type": "integer", "format": "int64"},
    "either": {"x-kubernetes-int-or-string": True},
    "size": {"x-kubernetes-int-or-string": True, "anyOf": EITHER, "pattern": "^a$"},
    "port": {
        "x-kubernetes-int-or-string": True,
        "allOf": [{"anyOf": EITHER}, {"pattern": "^a$"}],
    },
    "any": {"type": "string", "anyOf": [{"pattern": "^a"}, {"maxLength": 2}]},
    "one": {"type": "string", "oneOf": [{"pattern": "^a"}, {"maxLength": 2}]},
    "all": {"type": "string", "allOf": [{"pattern": "^a"}, {"maxLength": 2}]},
    "none": {"type": "string", "not": {"pattern": "^a"}},
}


async def test_they_are_what_make_crds_makes(real: ServerFactory, tmp_path: Path) -> None:
    async with real.start(tmp_path) as server:
        created = crd_builder.document(await crd_builder.read_schemas(server.get))
    assert crd_builder.encoded(created) == (crd_builder.PACKAGED / "definitions.json").read_bytes()


async def test_the_real_server_serves_them_without_complaint(
    real: ServerFactory, tmp_path: Path
) -> None:
    async with real.start(tmp_path) as server:
        for created in (await server.get(DEFINITIONS))["items"]:
            conditions = {one["type"]: one["status"] for one in created["status"]["conditions"]}
            assert conditions == {"NamesAccepted": "True", "Established": "True"}


@pytest.mark.parametrize("way", [(), ("--server-side",)])
async def test_kubectl_applies_them_and_applies_them_again(
    tmp_path: Path, way: tuple[str, ...]
) -> None:
    needs_kubectl()
    async with real_server(tmp_path / "server") as real:
        kubectl = Kubectl(real, tmp_path)
        await kubectl("apply", "-f", str(crd_builder.MANIFESTS), *way)
        again = await kubectl("apply", "-f", str(crd_builder.MANIFESTS), *way)
        done = "serverside-applied" if way else "unchanged"
        assert [line.split()[1] for line in again.splitlines()] == [done] * len(crd_builder.NAMES)
        for created in (await real.get(DEFINITIONS))["items"]:
            annotations = created["metadata"]["annotations"]
            assert (ANNOTATION in annotations) is (not way)
            assert sum(map(len, annotations.values())) < LIMIT / 2


async def test_unknown_fields_of_a_template_are_refused_or_dropped_with_a_warning(
    server: Server,
) -> None:
    job = job_with(imagee="x")
    template = job["spec"]["tasks"][0]["template"]
    template["foo"] = 1
    template["metadata"]["generateName"] = "x"
    template["spec"]["volumes"] = [{"name": "v", "emptydir": {}}]
    job["spec"]["volumes"] = [{"mountPath": "/x", "volumeClaim": {"size": 1}}]
    unknown = [
        f"{TEMPLATE}.foo",
        f"{TEMPLATE}.metadata.generateName",
        f"{MAIN}.imagee",
        f"{TEMPLATE}.spec.volumes[0].emptydir",
        "spec.volumes[0].volumeClaim.size",
    ]
    refused = await server.request("POST", f"{PATH}?fieldValidation=Strict", job)
    assert (refused.status, refused.body["reason"]) == (400, "BadRequest")
    assert refused.body["message"] == (
        'Job in version "v1alpha1" cannot be handled as a Job: strict decoding error: '
        + ", ".join(f'unknown field "{path}"' for path in unknown)
    )
    created = await server.create(PATH, job)
    stored = created["spec"]["tasks"][0]["template"]
    assert stored["spec"] == {
        "containers": [{"name": "main", "image": "busybox"}],
        "volumes": [{"name": "v"}],
    }
    assert (stored["metadata"], "foo" in stored) == ({}, False)


async def test_kubectl_says_which_field_of_a_template_is_misspelt(
    server: Server, tmp_path: Path
) -> None:
    needs_kubectl()
    text = json.dumps(job_with(comand=["true"]))
    result = await Kubectl(server, tmp_path).run("create", "-f", "-", stdin=text)
    assert result.code == 1
    assert f'strict decoding error: unknown field "{MAIN}.comand"' in result.err


async def test_a_template_gets_the_defaults_of_its_keys_alone(server: Server) -> None:
    ports = [{"containerPort": 80}]
    created = await server.create(PATH, job_with(ports=ports, envFrom=[{"configMapRef": {}}]))
    (main,) = created["spec"]["tasks"][0]["template"]["spec"]["containers"]
    assert main == {
        "name": "main",
        "image": "busybox",
        "ports": [{"containerPort": 80, "protocol": "TCP"}],
        "envFrom": [{"configMapRef": {"name": ""}}],
    }


@pytest.mark.parametrize("form", ["json", "yaml"])
async def test_whole_numbers_are_stored_as_integers(server: Server, form: str) -> None:
    text = json.dumps(job_with(resources={"limits": {"memory": 111}}))
    text = text.replace('"replicas": 1', '"replicas": 1.0').replace("111", "1.0e+3")
    assert "1.0," in text and "1.0e+3" in text
    kind = f"application/{form}"
    created = await server.request("POST", PATH, text.encode(), content_type=kind)
    assert created.status == 201, created.body
    (task,) = created.body["spec"]["tasks"]
    memory = task["template"]["spec"]["containers"][0]["resources"]["limits"]["memory"]
    assert [(type(each), each) for each in (task["replicas"], memory)] == [(int, 1), (int, 1000)]


QUANTITY = (
    r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))"
    r"(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
)
CPU = f"{MAIN}.resources.requests.cpu"


def type_error(path: str, given: str, wanted: str) -> str:
    """Error about the type of a value."""
    return f'{path}: Invalid value: "{given}": {path} in body must be of type {wanted}: "{given}"'


def general_error(text: str) -> str:
    """Error that names its field in its text alone."""
    return f'<nil>: Invalid value: "": {text}'


def not_integer(path: str, form: str = "(default format)") -> str:
    return general_error(f"Checked value must be of type integer {form} in {path}")


def pattern_error(path: str, value: str, pattern: str) -> str:
    return f"{path}: Invalid value: \"{value}\": {path} in body should match '{pattern}'"


WRONG_IN_TEMPLATE: list[tuple[Json, list[str]]] = [
    ({"image": 3}, [type_error(f"{MAIN}.image", "integer", "string")]),
    ({"stdin": "yes"}, [type_error(f"{MAIN}.stdin", "string", "boolean")]),
    ({"name": None}, [f"{MAIN}.name: Required value"]),
    ({"resources": {"requests": {"cpu": "abc"}}}, [pattern_error(CPU, "abc", QUANTITY)]),
    (
        {"resources": {"requests": {"cpu": 1.5}}},
        [
            type_error(CPU, "number", "integer,string"),
            general_error(f'"{CPU}" must validate at least one schema (anyOf)'),
            type_error(CPU, "number", "integer"),
            not_integer(CPU),
        ],
    ),
    (
        {"ports": [{"containerPort": 1}] * 2},
        [f'{MAIN}.ports[1]: Duplicate value: {{"containerPort":1,"protocol":"TCP"}}'],
    ),
]


async def test_wrong_values_in_a_template_are_refused(server: Server) -> None:
    for fields, error_lines in WRONG_IN_TEMPLATE:
        refused = await server.request("POST", PATH, job_with(**fields))
        assert refused.status == 422
        assert refused.body["message"] == error_message('Job.batch.volcano.sh "j"', error_lines)


ANY = general_error('"spec.any" must validate at least one schema (anyOf)')
ONE = '"spec.one" must validate one and only one schema (oneOf)'
ALL = '"spec.all" must validate all the schemas (allOf)'
WRONG: list[tuple[str, Any, list[str]]] = [
    ("whole", 1.5, [type_error("spec.whole", "number", "integer"), not_integer("spec.whole")]),
    (
        "long",
        1.5,
        [
            type_error("spec.long", "float64", "int64"),
            not_integer("spec.long", "with format int64"),
        ],
    ),
    (
        "long",
        2**70,
        [
            type_error("spec.long", "float64", "int64"),
            not_integer("spec.long", "with format int64"),
        ],
    ),
    ("either", 1.5, [type_error("spec.either", "number", "integer,string")]),
    ("either", True, [type_error("spec.either", "boolean", "integer,string")]),
    ("either", 2**70, [type_error("spec.either", "number", "integer,string")]),
    (
        "size",
        True,
        [
            type_error("spec.size", "boolean", "integer,string"),
            general_error('"spec.size" must validate at least one schema (anyOf)'),
            type_error("spec.size", "boolean", "integer"),
        ],
    ),
    (
        "port",
        "b",
        [
            pattern_error("spec.port", "b", "^a$"),
            general_error('"spec.port" must validate all the schemas (allOf)'),
        ],
    ),
    ("any", "bcd", [ANY, pattern_error("spec.any", "bcd", "^a")]),
    ("one", "ab", [general_error(f"{ONE}. Found 2 valid alternatives")]),
    (
        "one",
        "bcd",
        [general_error(f"{ONE}. Found none valid"), pattern_error("spec.one", "bcd", "^a")],
    ),
    (
        "one",
        3,
        [
            type_error("spec.one", "integer", "string"),
            general_error(f"{ONE}. Found 2 valid alternatives"),
        ],
    ),
    (
        "all",
        "bcd",
        [
            pattern_error("spec.all", "bcd", "^a"),
            "spec.all: Too long: may not be more than 2 bytes",
            general_error(f"{ALL}. None validated"),
        ],
    ),
    ("all", "abc", ["spec.all: Too long: may not be more than 2 bytes", general_error(ALL)]),
    ("none", "ab", [general_error('"spec.none" must not validate the schema (not)')]),
]


async def test_each_kind_of_check_complains_in_the_same_words(server: Server) -> None:
    await server.install_crds(definition_with(SCHEMA))
    for field, value, error_lines in WRONG:
        body = {"apiVersion": "ex.io/v1", "kind": "Foo", "metadata": {"name": "x"}}
        refused = await server.request("POST", FOOS, {**body, "spec": {field: value}})
        assert refused.status == 422
        assert refused.body["message"] == error_message('Foo.ex.io "x"', error_lines)


def error_message(whose: str, error_lines: list[str]) -> str:
    """The message of a refusal."""
    result = error_lines[0] if len(error_lines) == 1 else f"[{', '.join(error_lines)}]"
    return f"{whose} is invalid: {result}"


def job_with(**fields: Any) -> Json:
    """A job of one task with one container, which has some fields; ``None`` takes one away."""
    main = {"name": "main", "image": "busybox"} | fields
    main = {key: value for key, value in main.items() if value is not None}
    template: Json = {"metadata": {}, "spec": {"containers": [main]}}
    return {
        "apiVersion": JOBS.api_version,
        "kind": "Job",
        "metadata": {"name": "j"},
        "spec": {"tasks": [{"name": "a", "replicas": 1, "template": template}]},
    }
