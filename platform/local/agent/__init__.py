"""The node agent: runs the pods of its nodes as local processes, or simulates them.

From the top: `service` runs a `real_node` or the `simulated` ones; `pods` syncs each pod of a real
node; `volumes` and `runtime` are what containers need; `state` is pure: objects, pod state, and the
actions that follow from it. `runtime.shim` runs between the agent and a container, and outlives
the agent.
"""
