"""Kubernetes' syntax rules for names, labels and values.

Each function returns an error message, or ``""`` for valid text. The messages are Kubernetes' own,
which some clients match. Results are cached, since the same names and labels recur.
"""

import re
from functools import lru_cache

DNS1123_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
DNS1123_SUBDOMAIN = rf"{DNS1123_LABEL}(\.{DNS1123_LABEL})*"
DNS1035_LABEL = r"[a-z]([-a-z0-9]*[a-z0-9])?"
NAME = r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
CONFIG_KEY = r"[-._a-zA-Z0-9]+"
HTTP_HEADER_NAME = r"[-A-Za-z0-9]+"
_SEARCH_LABEL = r"_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?"
SEARCH_PATH = rf"{_SEARCH_LABEL}(\.{_SEARCH_LABEL})*"

_DNS1123_LABEL_RE = re.compile(DNS1123_LABEL)
_DNS1123_SUBDOMAIN_RE = re.compile(DNS1123_SUBDOMAIN)
_DNS1035_LABEL_RE = re.compile(DNS1035_LABEL)
_NAME_RE = re.compile(NAME)
_CONFIG_KEY_RE = re.compile(CONFIG_KEY)
_ENV_NAME_RE = re.compile(r"[ -<>-~]+")
_HTTP_HEADER_NAME_RE = re.compile(HTTP_HEADER_NAME)
_SEARCH_PATH_RE = re.compile(SEARCH_PATH)
_PATH_SEGMENT_RE = re.compile(r"[^/%]+")


@lru_cache(maxsize=4096)
def dns1123_label_error(text: str) -> str:
    """Validate a DNS label (RFC 1123): names of containers, volumes and namespaces."""
    if _DNS1123_LABEL_RE.fullmatch(text):
        return too_long_error(text, 63)
    return (
        "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', "
        "and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', "
        f"regex used for validation is '{DNS1123_LABEL}')"
    )


@lru_cache(maxsize=4096)
def dns1123_subdomain_error(text: str) -> str:
    """Validate a DNS subdomain (RFC 1123): names of most objects."""
    if _DNS1123_SUBDOMAIN_RE.fullmatch(text):
        return too_long_error(text, 253)
    return (
        "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' "
        "or '.', and must start and end with an alphanumeric character (e.g. 'example.com', "
        f"regex used for validation is '{DNS1123_SUBDOMAIN}')"
    )


def name_error(text: str) -> str:
    """Validate the name part of a label key, and names with the same rules."""
    if not text:
        return "name part must be non-empty"
    if _NAME_RE.fullmatch(text):
        return f"name part {long}" if (long := too_long_error(text, 63)) else ""
    return (
        "name part must consist of alphanumeric characters, '-', '_' or '.', and must start "
        "and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', "
        f"regex used for validation is '{NAME}')"
    )


@lru_cache(maxsize=4096)
def qualified_name_error(text: str) -> str:
    """Validate the key of a label, annotation or resource: ``[domain/]name``."""
    if text.count("/") > 1:
        return (
            "a valid label key must consist of alphanumeric characters, '-', '_' or '.', and must "
            "start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or "
            f"'123-abc', regex used for validation is '{NAME}') with an optional DNS subdomain "
            "prefix and '/' (e.g. 'example.com/MyName')"
        )
    prefix, slash, name = text.rpartition("/")
    if slash and not prefix:
        return "prefix part must be non-empty"
    if slash and (error := dns1123_subdomain_error(prefix)):
        return f"prefix part {error}"
    return name_error(name)


@lru_cache(maxsize=8192)
def label_value_error(text: str) -> str:
    """Validate a label value, which may be empty."""
    if not text or _NAME_RE.fullmatch(text):
        return too_long_error(text, 63)
    return (
        "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' "
        "or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or "
        f"'my_value',  or '12345', regex used for validation is '({NAME})?')"
    )


@lru_cache(maxsize=1024)
def dns1035_label_error(text: str) -> str:
    """Validate a DNS label that starts with a letter (RFC 1035): names of services."""
    if _DNS1035_LABEL_RE.fullmatch(text):
        return too_long_error(text, 63)
    return (
        "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with "
        "an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or "
        f"'abc-123', regex used for validation is '{DNS1035_LABEL}')"
    )


@lru_cache(maxsize=1024)
def path_segment_error(text: str) -> str:
    """Validate names that need only be one segment of a URL path: RBAC objects."""
    if text in (".", ".."):
        return f"may not be '{text}'"
    return "" if _PATH_SEGMENT_RE.fullmatch(text) else "may not contain '/' or '%'"


@lru_cache(maxsize=1024)
def config_key_error(text: str) -> str:
    """Validate a key of a ConfigMap or Secret."""
    if error := too_long_error(text, 253):
        return error
    if text in (".", ".."):
        return f"must not be '{text}'"
    if text.startswith(".."):
        return "must not start with '..'"
    if _CONFIG_KEY_RE.fullmatch(text):
        return ""
    return (
        "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. "
        "'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is "
        f"'{CONFIG_KEY}')"
    )


@lru_cache(maxsize=4096)
def env_name_error(text: str) -> str:
    """Validate the name of an environment variable."""
    if _ENV_NAME_RE.fullmatch(text):
        return ""
    return (
        "a valid environment variable name must consist only of printable ASCII characters other "
        "than '='"
    )


def http_header_name_error(text: str) -> str:
    """Validate the name of an HTTP header."""
    if _HTTP_HEADER_NAME_RE.fullmatch(text):
        return ""
    return (
        "a valid HTTP header must consist of alphanumeric characters or '-' (e.g. "
        f"'X-Header-Name', regex used for validation is '{HTTP_HEADER_NAME}')"
    )


def search_path_error(text: str) -> str:
    """Validate a DNS search domain."""
    if _SEARCH_PATH_RE.fullmatch(text):
        return too_long_error(text, 253)
    return (
        "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', "
        "'-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', "
        f"regex used for validation is '{SEARCH_PATH}')"
    )


def too_long_error(text: str, max_length: int) -> str:
    """Validate the length of ASCII text, in bytes."""
    return f"must be no more than {max_length} bytes" if len(text) > max_length else ""
