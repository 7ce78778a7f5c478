"""Kubernetes and Volcano API types, resource names, quantities, selectors and CRDs.

No I/O here, and no imports of other layers.
"""
