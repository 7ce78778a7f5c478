"""The init container by which a PyTorchJob's workers wait for the address of the master."""

from typing import Any

import yaml

from .base import PodSettings

_SCRIPT = """\
tries={tries}
while [ "$tries" -gt 0 ]; do
  if getent hosts {address} || nslookup {address}; then exit 0; fi
  echo "waiting for the address of {address}"
  tries=$((tries - 1))
  sleep 2
done
echo "{address} was not found"
exit 1
"""


def init_containers(address: str, settings: PodSettings) -> list[dict[str, Any]]:
    """Return the init containers of a worker, which wait until *address* is known.

    Raises:
        yaml.YAMLError: the template of the settings is malformed.
    """
    if settings.pytorch_init_template:
        return _from_template(address, settings)
    script = _SCRIPT.format(address=address, tries=settings.pytorch_init_tries)
    return [
        {
            "name": "init-pytorch",
            "image": settings.pytorch_init_image,
            "imagePullPolicy": "IfNotPresent",
            "resources": {
                "limits": {"cpu": "100m", "memory": "20Mi"},
                "requests": {"cpu": "50m", "memory": "10Mi"},
            },
            "command": ["sh", "-c", script],
        }
    ]


def _from_template(address: str, settings: PodSettings) -> list[dict[str, Any]]:
    text = settings.pytorch_init_template
    values = {
        "MasterAddr": address,
        "InitContainerImage": settings.pytorch_init_image,
        "MaxTries": str(settings.pytorch_init_tries),
    }
    for name, value in values.items():
        for spelling in (f"{{{{.{name}}}}}", f"{{{{ .{name} }}}}"):
            text = text.replace(spelling, value)
    parsed: list[dict[str, Any]] = yaml.safe_load(text) or []
    return parsed
