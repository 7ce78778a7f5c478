"""Which NetworkPolicies are rejected, on both servers."""

from pathlib import Path
from typing import Any

from support.api_servers import ServerFactory

from batholith.model.names import NETWORKPOLICIES

Json = dict[str, Any]

CASES: list[tuple[Json, list[tuple[str, str]]]] = [
    ({"from": [{}]}, [("from[0]", "FieldValueRequired")]),
    ({"from": [{"ipBlock": {"cidr": "10.0.0.0/8"}, "podSelector": {}}]},
     [("from[0]", "FieldValueForbidden")]),
    ({"from": [{"ipBlock": {"cidr": "10.0.0.0"}}]},
     [("from[0].ipBlock.cidr", "FieldValueInvalid")]),
    ({"from": [{"ipBlock": {"cidr": ""}}]}, [("from[0].ipBlock.cidr", "FieldValueRequired")]),
    ({"from": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.0.0.0/8"]}}]},
     [("from[0].ipBlock.except[0]", "FieldValueInvalid")]),
    ({"from": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["11.0.0.0/9", "x"]}}]},
     [("from[0].ipBlock.except[0]", "FieldValueInvalid"),
      ("from[0].ipBlock.except[1]", "FieldValueInvalid")]),
    ({"from": [{"namespaceSelector": {"matchExpressions": [{"key": "a", "operator": "X"}]}}]},
     [("from[0].namespaceSelector.matchExpressions[0].operator", "FieldValueInvalid")]),
    ({"ports": [{"protocol": "ICMP"}]}, [("ports[0].protocol", "FieldValueNotSupported")]),
    ({"ports": [{"port": 0}]}, [("ports[0].port", "FieldValueInvalid")]),
    ({"ports": [{"port": "Web"}]}, [("ports[0].port", "FieldValueInvalid")]),
    ({"ports": [{"port": 80, "endPort": 79}]}, [("ports[0].endPort", "FieldValueInvalid")]),
    ({"ports": [{"port": 80, "endPort": 70000}]}, [("ports[0].endPort", "FieldValueInvalid")]),
    ({"ports": [{"port": "web", "endPort": 90}]}, [("ports[0].endPort", "FieldValueInvalid")]),
    ({"ports": [{"endPort": 90}]}, [("ports[0].endPort", "FieldValueInvalid")]),
    ({"from": None, "ports": None}, []),
    ({"ports": [{"port": 80, "endPort": 80}, {"port": "web"}, {"protocol": "SCTP"}],
      "from": [{"ipBlock": {"cidr": "fd00::/8", "except": ["fd00::/9"]}}]}, []),
]  # fmt: skip


async def test_invalid_policies_are_rejected_and_the_field_is_named(
    servers: ServerFactory, tmp_path: Path
) -> None:
    async with servers.start(tmp_path) as server:
        for number, (rule, expected) in enumerate(CASES):
            body = {
                "metadata": {"name": f"p{number}"},
                "spec": {"podSelector": {}, "ingress": [rule]},
            }
            response = await server.request("POST", NETWORKPOLICIES.path("default"), body)
            causes = response.body.get("details", {}).get("causes", ()) if expected else ()
            found = [(each["field"], each["reason"]) for each in causes]
            wanted = [(f"spec.ingress[0].{path}", reason) for path, reason in expected]
            assert (rule, sorted(found)) == (rule, sorted(wanted)), response.body
            assert response.status == (422 if expected else 201)
