"""The node agent: pods bound to its nodes, run as local processes or simulated.

Pure parts decide (`status`, `lifecycle`, `plan`, `images`, `environment`, `hosts`, `layout`);
shells act (`runner`, `volumes`, `worker`, `simulate`, `service`, `server`). `shim` is the one
program that runs between the agent and a container, and outlives the agent.
"""
