"""Kubeflow's training jobs (``kubeflow.org/v1``): types, defaults and validation of all kinds.

What differs between the kinds is in ``training_ctrl.frameworks``, one module per framework.
"""
