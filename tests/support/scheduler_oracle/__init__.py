"""A slow scheduler from the specification, which the product is compared with.

It has no equivalence classes, no batches, no memory of earlier cycles and no undo log, and imports
nothing that decides: object types and the parsing of quantities alone.
"""
