"""CEL: compilation and evaluation of expressions, for the embedded API server and the scheduler.

The language is evaluated by Google's C++ implementation; the functions that Kubernetes adds are
here. The library is imported when the first expression is compiled.
"""
