"""Values and fields of core/v1 that several kinds have."""

ACCESS_MODES = ("ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod")
PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
PROTOCOLS = ("SCTP", "TCP", "UDP")
PULL_POLICIES = ("Always", "IfNotPresent", "Never")
VOLUME_MODES = ("Block", "Filesystem")
