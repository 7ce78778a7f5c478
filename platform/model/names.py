"""Public API names: resources, labels, annotations, storage class."""

from typing import NamedTuple


class Resource(NamedTuple):
    """A Kubernetes API resource and its kind."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """Return ``group/version``, or ``version`` alone for the core group."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Return the URL path of the collection, of one object, or of its subresource.

        A namespaced resource without *namespace* yields the collection in all namespaces.
        """
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        prefix = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        path = f"{root}{prefix}/{self.plural}"
        if name:
            path = f"{path}/{name}"
        return f"{path}/{subresource}" if subresource else path


BATCH_GROUP = "batch.volcano.sh"
BUS_GROUP = "bus.volcano.sh"
FLOW_GROUP = "flow.volcano.sh"
SCHEDULING_GROUP = "scheduling.volcano.sh"
TOPOLOGY_GROUP = "topology.volcano.sh"
NODEINFO_GROUP = "nodeinfo.volcano.sh"

JOBS = Resource(BATCH_GROUP, "v1alpha1", "jobs", "Job")
CRONJOBS = Resource(BATCH_GROUP, "v1alpha1", "cronjobs", "CronJob")
COMMANDS = Resource(BUS_GROUP, "v1alpha1", "commands", "Command")
JOBFLOWS = Resource(FLOW_GROUP, "v1alpha1", "jobflows", "JobFlow")
JOBTEMPLATES = Resource(FLOW_GROUP, "v1alpha1", "jobtemplates", "JobTemplate")
PODGROUPS = Resource(SCHEDULING_GROUP, "v1beta1", "podgroups", "PodGroup")
QUEUES = Resource(SCHEDULING_GROUP, "v1beta1", "queues", "Queue", namespaced=False)
HYPERNODES = Resource(TOPOLOGY_GROUP, "v1alpha1", "hypernodes", "HyperNode", namespaced=False)
NUMATOPOLOGIES = Resource(
    NODEINFO_GROUP, "v1alpha1", "numatopologies", "Numatopology", namespaced=False
)
"""Written by Volcano's resource exporter; their CRD is not part of Batholith's."""

BATCH_JOBS = Resource("batch", "v1", "jobs", "Job")
"""Kubernetes' own Jobs; ``JOBS`` and ``CRONJOBS`` are Volcano's."""
PODS = Resource("", "v1", "pods", "Pod")
POD_DISRUPTION_BUDGETS = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
SERVICES = Resource("", "v1", "services", "Service")
ENDPOINTS = Resource("", "v1", "endpoints", "Endpoints")
ENDPOINTSLICES = Resource("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice")
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
REPLICASETS = Resource("apps", "v1", "replicasets", "ReplicaSet")
STATEFULSETS = Resource("apps", "v1", "statefulsets", "StatefulSet")
DAEMONSETS = Resource("apps", "v1", "daemonsets", "DaemonSet")
CONTROLLERREVISIONS = Resource("apps", "v1", "controllerrevisions", "ControllerRevision")
REPLICATIONCONTROLLERS = Resource("", "v1", "replicationcontrollers", "ReplicationController")
CONFIGMAPS = Resource("", "v1", "configmaps", "ConfigMap")
SECRETS = Resource("", "v1", "secrets", "Secret")
SERVICEACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")
PERSISTENTVOLUMECLAIMS = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
PERSISTENTVOLUMES = Resource("", "v1", "persistentvolumes", "PersistentVolume", namespaced=False)
STORAGECLASSES = Resource(
    "storage.k8s.io", "v1", "storageclasses", "StorageClass", namespaced=False
)
CSINODES = Resource("storage.k8s.io", "v1", "csinodes", "CSINode", namespaced=False)
CSIDRIVERS = Resource("storage.k8s.io", "v1", "csidrivers", "CSIDriver", namespaced=False)
CSISTORAGECAPACITIES = Resource(
    "storage.k8s.io", "v1", "csistoragecapacities", "CSIStorageCapacity"
)
VOLUMEATTACHMENTS = Resource(
    "storage.k8s.io", "v1", "volumeattachments", "VolumeAttachment", namespaced=False
)
RESOURCECLAIMS = Resource("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim")
RESOURCECLAIMTEMPLATES = Resource(
    "resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate"
)
DEVICECLASSES = Resource("resource.k8s.io", "v1", "deviceclasses", "DeviceClass", namespaced=False)
RESOURCESLICES = Resource(
    "resource.k8s.io", "v1", "resourceslices", "ResourceSlice", namespaced=False
)
DEVICETAINTRULES = Resource(
    "resource.k8s.io", "v1beta2", "devicetaintrules", "DeviceTaintRule", namespaced=False
)
"""Served by the embedded API server; by Kubernetes only if it is configured."""

EVENTS = Resource("", "v1", "events", "Event")
BATCH_CRONJOBS = Resource("batch", "v1", "cronjobs", "CronJob")
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")
IP_ADDRESSES = Resource("networking.k8s.io", "v1", "ipaddresses", "IPAddress", namespaced=False)
SERVICE_CIDRS = Resource("networking.k8s.io", "v1", "servicecidrs", "ServiceCIDR", namespaced=False)
NETWORKPOLICIES = Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
RESOURCEQUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota")
PRIORITYCLASSES = Resource(
    "scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False
)
NATIVE_PODGROUPS = Resource("scheduling.k8s.io", "v1alpha2", "podgroups", "PodGroup")
"""PodGroups of Kubernetes 1.36 itself."""
NATIVE_PODGROUPS_BETA = Resource("scheduling.k8s.io", "v1beta1", "podgroups", "PodGroup")
"""The same of Kubernetes 1.37."""
WORKLOADS = Resource("scheduling.k8s.io", "v1alpha2", "workloads", "Workload")
WORKLOADS_BETA = Resource("scheduling.k8s.io", "v1beta1", "workloads", "Workload")
API_SERVICES = Resource(
    "apiregistration.k8s.io", "v1", "apiservices", "APIService", namespaced=False
)
CRDS = Resource(
    "apiextensions.k8s.io",
    "v1",
    "customresourcedefinitions",
    "CustomResourceDefinition",
    namespaced=False,
)
TOKENREVIEWS = Resource(
    "authentication.k8s.io", "v1", "tokenreviews", "TokenReview", namespaced=False
)

_ADMISSION_GROUP = "admissionregistration.k8s.io"
MUTATING_CONFIGURATIONS = Resource(
    _ADMISSION_GROUP,
    "v1",
    "mutatingwebhookconfigurations",
    "MutatingWebhookConfiguration",
    namespaced=False,
)
VALIDATING_CONFIGURATIONS = Resource(
    _ADMISSION_GROUP,
    "v1",
    "validatingwebhookconfigurations",
    "ValidatingWebhookConfiguration",
    namespaced=False,
)
MUTATING_POLICIES = Resource(
    _ADMISSION_GROUP,
    "v1",
    "mutatingadmissionpolicies",
    "MutatingAdmissionPolicy",
    namespaced=False,
)
MUTATING_POLICIES_BETA = Resource(
    _ADMISSION_GROUP,
    "v1beta1",
    "mutatingadmissionpolicies",
    "MutatingAdmissionPolicy",
    namespaced=False,
)
MUTATING_BINDINGS = Resource(
    _ADMISSION_GROUP,
    "v1",
    "mutatingadmissionpolicybindings",
    "MutatingAdmissionPolicyBinding",
    namespaced=False,
)
MUTATING_BINDINGS_BETA = Resource(
    _ADMISSION_GROUP,
    "v1beta1",
    "mutatingadmissionpolicybindings",
    "MutatingAdmissionPolicyBinding",
    namespaced=False,
)
LIMITRANGES = Resource("", "v1", "limitranges", "LimitRange")

SCHEDULER_NAME = "volcano"
SYSTEM_NAMESPACE = "volcano-system"
"""Default namespace of Batholith's own objects."""

DEFAULT_QUEUE = "default"
ROOT_QUEUE = "root"
QUEUE_COMMAND_NAMESPACE = "default"
"""Namespace in which the REST API creates Commands for queues, which have none."""

# Volcano's labels and annotations: wire names, never renamed.
JOB_NAME = "volcano.sh/job-name"
JOB_NAMESPACE = "volcano.sh/job-namespace"
JOB_VERSION = "volcano.sh/job-version"
JOB_RETRY_COUNT = "volcano.sh/job-retry-count"
QUEUE_NAME = "volcano.sh/queue-name"
TASK_SPEC = "volcano.sh/task-spec"
TASK_INDEX = "volcano.sh/task-index"
PARTITION_ID = "volcano.sh/partition-id"
TEMPLATE_UID = "volcano.sh/template-uid"
CREATED_BY_JOB_FLOW = "volcano.sh/createdByJobFlow"
"""Label and annotation of a Job: ``<namespace>.<name>`` of its JobFlow."""
CREATED_BY_JOB_TEMPLATE = "volcano.sh/createdByJobTemplate"
"""Label and annotation of a Job: ``<namespace>.<name>`` of its JobTemplate."""
PODGROUP_MIN_MEMBER = "scheduling.volcano.sh/group-min-member"
"""Annotation of the owner of pods without a job: the gang size (minMember)."""
ALLOCATED_HYPERNODE = "volcano.sh/job-allocated-hypernode"
"""On PodGroups with a network topology: the HyperNode that all their pods are in."""
PODGROUP_QUEUE = "scheduling.volcano.sh/queue-name"
"""Annotation of a pod without a job: the queue of its PodGroup. Also of a namespace: the default
queue of its Jobs and PodGroups."""
GROUP_NAME = "scheduling.k8s.io/group-name"
"""Annotation of a pod: the PodGroup that it belongs to."""
INSTANTIATE = "cronjob.kubernetes.io/instantiate"
"""Annotation of a Job created from a CronJob, but not by its schedule; kubectl's, too."""
MANUAL = "manual"
"""Its value."""
QUEUE_GATE = "scheduling.volcano.sh/queue-allocation-gate"
"""Pod annotation (``true``): the webhook adds the scheduling gate of the same name; the scheduler
removes it once the queue has capacity for the pod."""

# Batholith's own.
WHY = "batholith.io/why"
"""Annotation of a PodGroup, or of a pod without one: why it waits, as JSON; written by the
scheduler."""

TASK = "batholith.io/task"
POD = "batholith.io/pod"
PARTITION = "batholith.io/partition"
"""Annotations of a Command: the task, pod or partition (of the task) that it restarts."""
JOB_ID = "batholith.io/job-id"
"""Label of a job of ``batholith submit``: its number, which scripts read as ``SLURM_JOB_ID``."""
SUBMISSION = "batholith.io/submission"
"""Label of a job that is suspended until what its pods need is stored."""
SUBMISSION_INCOMPLETE = "incomplete"
SUBMITTED_NAME = "batholith.io/job-name"
"""Label of such a job: its name without the number, by which it is a singleton."""
ACCOUNT = "batholith.io/account"
"""Label of a job of any kind: what its usage is added up by, such as a project. The job controller
copies it to PodGroup and pods."""
SUBMITTED_BY = "batholith.io/submitted-by"
"""Annotation of a job: the user who created it through the REST API."""
OPERATION = "batholith.io/operation"
"""Annotation of an object that a POST to the REST API has created: the id of that operation."""
MEMBERS = "batholith.io/members"
"""Annotation of a PodGroup: its members before they exist, as JSON; written by the job controller
when it creates the PodGroup."""
PODGROUP_SPEC = "batholith.io/podgroup-spec"
"""Annotation of a PodGroup of Kubernetes itself: the spec that one of Volcano would have."""
PLAN = "batholith.io/plan"
"""Annotation of a PodGroup: the nodes of its members, as JSON; written by the scheduler."""
PLACE_AT_CREATION = "batholith.io/place-at-creation"
"""Annotation of a Job: ``false`` creates its pods without a node."""
SUSPEND_BY = "batholith.io/suspend-by"
"""Label of a suspended job of other kinds that is resumed by its queue: the value ``queue``."""
ADMITTED = "batholith.io/admitted-by-queue"
"""Annotation of it: the uid of the PodGroup with which its queue has admitted it."""
GANG = "batholith.io/gang"
"""Annotation of pods that are one gang in their namespace, of any owners: its name."""
GANG_SIZE = "batholith.io/gang-size"
"""Annotation of these pods: how many must run together."""
PODGROUP = "batholith.io/podgroup"
"""Annotation of a pod without a PodGroup: the PodGroup that it would have, as JSON; written by the
job controller. Also a label of such a pod, with the value :data:`NO_PODGROUP`."""
NO_PODGROUP = "none"
PODGROUPS_OF_JOB = "batholith.io/podgroups"
"""Annotation of a Job: ``all`` gives it a PodGroup even if it has a single pod."""

DEPENDS_ON = "batholith.io/depends-on"
"""Annotation of a Volcano job: other jobs that it waits for before anything is created for it."""
BEGIN = "batholith.io/begin"
"""Annotation of a Volcano job: the time before which nothing is created for it, of RFC 3339."""
MAX_PARALLEL = "batholith.io/max-parallel"
"""Annotation of a Volcano job: how many pods of each task may be unfinished at a time; the job
controller creates no others before."""
REPLACE_NODES = "batholith.io/replace-nodes"
"""Whether pods that were lost with their node are removed without their kubelet."""
KEEP_NODES = "batholith.io/keep-nodes"
"""For how long the nodes of deleted and failed pods are kept for the others of their gang."""
TIME_LIMIT = "batholith.io/time-limit"
"""Annotation of a job or PodGroup: how long it may run, as a Go duration; the controller of the job
enforces it."""
TIME_LIMIT_WARNING = "batholith.io/time-limit-warning"
"""Annotation of a Volcano job: how long before its time limit its pods get SIGTERM, as a Go
duration."""
ACTIVE_DEADLINE = "batholith.io/active-deadline-seconds"
"""Annotation of a PodGroup: the ``activeDeadlineSeconds`` of its owner; written by controllers."""
NOTIFY = "batholith.io/notify"
"""Annotation of a job or queue: the URL that is notified of the job, or of the jobs of the queue
that have no such annotation; ``none`` for no notifications."""
NOTIFY_EVENTS = "batholith.io/notify-events"
"""Annotation in addition to it: the events, separated by commas; all by default."""
RUNNING_ESTIMATE = "batholith.io/running-estimate"
"""Annotation of a PodGroup: how long it is expected to run, as a Go duration. Users write it,
and the job controller does with the ``runningEstimate`` of a job."""
DEFAULT_TIME_LIMIT = "batholith.io/default-time-limit"
MAX_TIME_LIMIT = "batholith.io/max-time-limit"
"""Annotations of a queue: the limit of jobs without one, and the longest that a job may have. They
hold for the queues below it, too."""

DEFAULT_IMAGE = "batholith.io/default-image"
"""Annotation of a queue: the image of jobs that `batholith submit` is given none for."""
WORKDIR_CLAIM = "batholith.io/workdir-claim"
"""Annotation of a queue: the PersistentVolumeClaim, in the namespace of the job, in which
`batholith submit --kubernetes` stores the working directory."""
BUDGET = "batholith.io/budget"
"""Annotation of a queue: what it may use, with the queues below it, in one window of time, as
``cpu=1000,nvidia.com/gpu=50`` in CPU-hours and device-hours."""
BUDGET_WINDOW = "batholith.io/budget-window"
"""Annotation of a queue: how long such a window is, as a Go duration."""
BUDGET_POLICY = "batholith.io/budget-policy"
"""Annotation of a queue: ``hard`` (gangs wait once the budget is used up) or ``soft`` (the queue is
last then)."""

MIN_RUNTIME = "batholith.io/min-runtime"
"""Annotation of a queue or a PriorityClass: for how long after its start a gang is not evicted for
others, as a Go duration. That of a queue holds for those below it that have none."""
LAST_CHECKPOINT = "batholith.io/last-checkpoint"
"""Annotation of a pod or PodGroup: until when its work is saved, as a time of RFC 3339."""

REPLACED_BY_SCHEDULER = "batholith.io/ReplacedByScheduler"
"""Type of a pod condition: the scheduler evicts the pod and expects its controller to create it
again. The job controller then counts no retry and applies no policy."""
SIMULATE_PREFIX = "simulate.batholith.io/"
SIMULATED_CPU = SIMULATE_PREFIX + "cpu-usage"
SIMULATED_MEMORY = SIMULATE_PREFIX + "memory-usage"
"""Annotations: what each container of a simulated pod uses, for metrics.k8s.io."""
DIR_PROVISIONER = "folders.batholith.io"
"""Provisioner of the embedded cluster's volumes: one directory per PVC, managed by the agent."""
DIR_STORAGE_CLASS = "folder"
"""Storage class that the embedded cluster creates at start-up."""
ROOT_CA = "kube-root-ca.crt"
"""ConfigMap in each namespace with the certificates by which pods verify the API server."""

INSTANCE_TYPE = "node.kubernetes.io/instance-type"
"""Label of nodes."""

COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
"""Annotation and label of a pod of an Indexed Job of batch/v1."""

# Kubeflow's training jobs: wire names.
TRAINING_GROUP = "kubeflow.org"
TRAINING_OPERATOR_NAME = "training.kubeflow.org/operator-name"
TRAINING_JOB_NAME = "training.kubeflow.org/job-name"
TRAINING_REPLICA_TYPE = "training.kubeflow.org/replica-type"
TRAINING_REPLICA_INDEX = "training.kubeflow.org/replica-index"
TRAINING_JOB_ROLE = "training.kubeflow.org/job-role"
TRAINING_OPERATOR = "kubeflow.org/training-operator"
"""``managedBy`` of the training jobs that the training controller owns; also the default."""
MULTIKUEUE = "kueue.x-k8s.io/multikueue"
"""``managedBy`` of the training jobs that Kueue runs in another cluster."""

TEMPLATE_GENERATION = "deprecated.daemonset.template.generation"
"""Annotation of a DaemonSet: how often its template was changed. The API server sets it."""
