"""The shapes that names, label keys and label values may have.

Each check takes a text and returns what is wrong with it, or ``""``; results are remembered,
because the same names and labels come again and again.
"""

import re
from functools import lru_cache

DNS1123_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
DNS1123_SUBDOMAIN = rf"{DNS1123_LABEL}(\.{DNS1123_LABEL})*"
DNS1035_LABEL = r"[a-z]([-a-z0-9]*[a-z0-9])?"
_NAME_PART = r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"

_label = re.compile(DNS1123_LABEL).fullmatch
_subdomain = re.compile(DNS1123_SUBDOMAIN).fullmatch
_label_1035 = re.compile(DNS1035_LABEL).fullmatch
_name_part = re.compile(_NAME_PART).fullmatch
_label_value = re.compile(rf"({_NAME_PART})?").fullmatch
_config_key = re.compile(r"[-._a-zA-Z0-9]+").fullmatch
_env_name = re.compile(r"[ -<>-~]+").fullmatch
_path_segment = re.compile(r"[^/%]+").fullmatch


def _too_long(limit: int) -> str:
    return f"must be no more than {limit} bytes"


@lru_cache(maxsize=4096)
def subdomain(text: str) -> str:
    """Say what keeps *text* from being a DNS subdomain (RFC 1123, at most 253 bytes)."""
    if len(text) > 253:
        return _too_long(253)
    if _subdomain(text):
        return ""
    return (
        "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' "
        "or '.', and must start and end with an alphanumeric character (e.g. 'example.com', "
        f"regex used for validation is '{DNS1123_SUBDOMAIN}')"
    )


@lru_cache(maxsize=4096)
def label(text: str) -> str:
    """Say what keeps *text* from being a DNS label (RFC 1123, at most 63 bytes)."""
    if len(text) > 63:
        return _too_long(63)
    if _label(text):
        return ""
    return (
        "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', "
        "and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', "
        f"regex used for validation is '{DNS1123_LABEL}')"
    )


@lru_cache(maxsize=1024)
def label_1035(text: str) -> str:
    """Say what keeps *text* from being a DNS label that starts with a letter (RFC 1035)."""
    if len(text) > 63:
        return _too_long(63)
    if _label_1035(text):
        return ""
    return (
        "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with "
        "an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or "
        f"'abc-123', regex used for validation is '{DNS1035_LABEL}')"
    )


@lru_cache(maxsize=1024)
def path_segment(text: str) -> str:
    """Say what keeps *text* from being one segment of a URL path (names of RBAC objects)."""
    if text in (".", ".."):
        return f"may not be '{text}'"
    return "" if _path_segment(text) else "may not contain '/' or '%'"


@lru_cache(maxsize=4096)
def qualified_name(text: str) -> str:
    """Say what keeps *text* from being a key of labels: ``[prefix/]name``."""
    prefix, slash, name = text.rpartition("/")
    if "/" in prefix:
        return (
            "a qualified name must consist of alphanumeric characters, '-', '_' or '.', "
            "with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
        )
    if slash and not prefix:
        return "prefix part must be non-empty"
    if slash and (problem := subdomain(prefix)):
        return f"prefix part {problem}"
    if not name:
        return "name part must be non-empty"
    if len(name) > 63:
        return f"name part {_too_long(63)}"
    if not _name_part(name):
        return (
            "name part must consist of alphanumeric characters, '-', '_' or '.', and must start "
            "and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', "
            f"regex used for validation is '{_NAME_PART}')"
        )
    return ""


@lru_cache(maxsize=8192)
def label_value(text: str) -> str:
    """Say what keeps *text* from being the value of a label."""
    if len(text) > 63:
        return _too_long(63)
    if _label_value(text):
        return ""
    return (
        "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' "
        "or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or "
        f"'my_value',  or '12345', regex used for validation is '({_NAME_PART})?')"
    )


@lru_cache(maxsize=1024)
def config_key(text: str) -> str:
    """Say what keeps *text* from being a key of a ConfigMap or Secret."""
    if len(text) > 253:
        return _too_long(253)
    if text in (".", "..") or text.startswith(".."):
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
