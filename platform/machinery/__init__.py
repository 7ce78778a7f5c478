"""Library of the controllers: work queues, workers, expectations, claiming, pod control, clock.

``docs/writing-a-controller.md`` has an example and a table of the modules.
"""
