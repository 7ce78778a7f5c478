"""Job plugins: what a job may have done to its pods, and beside them, by naming it in its spec."""
