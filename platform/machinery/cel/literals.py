"""Literals and comments of CEL, which no rewriting of an expression may change."""

import re

LITERAL = re.compile(
    r"[rRbB]{0,2}(?:'''(?:.|\n)*?'''|\"\"\"(?:.|\n)*?\"\"\"|'(?:[^'\\\n]|\\.)*'|\"(?:[^\"\\\n]|\\.)*\")"
    r"|//[^\n]*"
)
