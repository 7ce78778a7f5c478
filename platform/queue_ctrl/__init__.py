"""Queue controller: state, hierarchy and counts of queues."""
