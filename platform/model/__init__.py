"""What the platform speaks of: names, typed objects, quantities, selectors, CRDs.

No I/O here, and no imports of other layers.
"""
