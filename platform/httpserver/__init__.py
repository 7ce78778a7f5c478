"""What every HTTP listener shares: accepting connections, and limits on clients' requests."""
