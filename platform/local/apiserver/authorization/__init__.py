"""Authorization by RBAC: rules, decisions, checks of writes, impersonation, reviews."""
