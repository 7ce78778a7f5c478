"""CEL: expressions in definitions, policies and webhook configurations.

The language is evaluated by Google's C++ implementation; the functions that Kubernetes adds are
here. The library is imported when the first expression is compiled.
"""
