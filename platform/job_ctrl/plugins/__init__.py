"""Job plugins: mutate the pods of the jobs that name them, and provide objects for them."""
