"""CEL in definitions, policies and webhook configurations: its variables, types and results.

Expressions are compiled and evaluated by :mod:`....machinery.cel`.
"""
