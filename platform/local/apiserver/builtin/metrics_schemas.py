"""Schemas of NodeMetrics and PodMetrics, whose types are not kube-apiserver's."""

from typing import Any

Json = dict[str, Any]

_QUANTITY = {"description": "Quantity, such as 100m or 64Mi.", "type": "string"}
_USAGE: Json = {
    "description": "Usage is what was used in the window, by resource.",
    "type": "object",
    "additionalProperties": _QUANTITY,
}
_TIME: Json = {
    "timestamp": {
        "description": "Timestamp is the end of the window in which the usage was measured.",
        "type": "string",
        "format": "date-time",
    },
    "window": {
        "description": "Window is the length of time in which the usage was measured.",
        "type": "string",
    },
}

NODE_METRICS: Json = {
    "description": "NodeMetrics is the usage of a node.",
    "type": "object",
    "required": ["timestamp", "window", "usage"],
    "properties": {**_TIME, "usage": _USAGE},
}
POD_METRICS: Json = {
    "description": "PodMetrics is the usage of the containers of a pod.",
    "type": "object",
    "required": ["timestamp", "window", "containers"],
    "properties": {
        **_TIME,
        "containers": {
            "description": "Containers are the containers of the pod with their usage.",
            "type": "array",
            "items": {
                "type": "object",
                "required": ["name", "usage"],
                "properties": {
                    "name": {"description": "Name of the container.", "type": "string"},
                    "usage": _USAGE,
                },
            },
        },
    },
}
