"""The reconcile kernel: the shape that all controllers share (docs/writing-a-controller.md)."""
