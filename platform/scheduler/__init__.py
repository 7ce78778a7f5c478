"""The gang scheduler: snapshot, actions, plugins, binder."""
