"""The shapes that names, label keys and label values may have.

Those that the other parts need too are in :mod:`batholith.model.syntax`; here are the rest. Each
check takes a text and returns what is wrong with it, or ``""``.
"""

import re
from functools import lru_cache

from ...model.syntax import dns_label_problem as label
from ...model.syntax import dns_subdomain_problem as subdomain
from ...model.syntax import label_value_problem as label_value
from ...model.syntax import qualified_name_problem as qualified_name
from ...model.syntax import too_long_problem

__all__ = [
    "config_key",
    "env_name",
    "label",
    "label_1035",
    "label_value",
    "path_segment",
    "qualified_name",
    "subdomain",
]

_DNS1035_LABEL = r"[a-z]([-a-z0-9]*[a-z0-9])?"

_label_1035 = re.compile(_DNS1035_LABEL).fullmatch
_config_key = re.compile(r"[-._a-zA-Z0-9]+").fullmatch
_env_name = re.compile(r"[ -<>-~]+").fullmatch
_path_segment = re.compile(r"[^/%]+").fullmatch


@lru_cache(maxsize=1024)
def label_1035(text: str) -> str:
    """Say what keeps *text* from being a DNS label that starts with a letter (RFC 1035)."""
    if _label_1035(text):
        return too_long_problem(text, 63)
    return (
        "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with "
        "an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or "
        f"'abc-123', regex used for validation is '{_DNS1035_LABEL}')"
    )


@lru_cache(maxsize=1024)
def path_segment(text: str) -> str:
    """Say what keeps *text* from being one segment of a URL path (names of RBAC objects)."""
    if text in (".", ".."):
        return f"may not be '{text}'"
    return "" if _path_segment(text) else "may not contain '/' or '%'"


@lru_cache(maxsize=1024)
def config_key(text: str) -> str:
    """Say what keeps *text* from being a key of a ConfigMap or Secret."""
    if problem := too_long_problem(text, 253):
        return problem
    if text == "." or text.startswith(".."):
        return f"must not start with '..' or be '{text}'"
    if _config_key(text):
        return ""
    return (
        "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. "
        "'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is "
        "'[-._a-zA-Z0-9]+')"
    )


@lru_cache(maxsize=4096)
def env_name(text: str) -> str:
    """Say what keeps *text* from being the name of an environment variable."""
    if _env_name(text):
        return ""
    return "a valid environment variable name must consist only of printable ASCII but not '='"
