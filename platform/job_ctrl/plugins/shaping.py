"""Names of :mod:`.pod_mutations` in earlier versions, for plugins of other packages."""

from .pod_mutations import add_env as add_env
from .pod_mutations import add_mount as add_mount
from .pod_mutations import add_port as add_port
from .pod_mutations import append_env as append_env
from .pod_mutations import containers as containers
from .pod_mutations import find_task, fqdn, hostnames, task_index, task_name
from .pod_mutations import subdomain as subdomain

role = task_name
index = task_index
hosts = hostnames
domain = fqdn
task_named = find_task
