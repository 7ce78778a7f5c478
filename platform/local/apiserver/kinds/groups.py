"""Names of API groups that several tables of the built-in kinds use."""

ADMISSION = "admissionregistration.k8s.io"
AUTHENTICATION = "authentication.k8s.io"
AUTHORIZATION = "authorization.k8s.io"
NETWORKING = "networking.k8s.io"
RBAC = "rbac.authorization.k8s.io"
RESOURCE = "resource.k8s.io"
STORAGE = "storage.k8s.io"
