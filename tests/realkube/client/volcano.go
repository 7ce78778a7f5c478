package main

import (
	"encoding/json"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	batch "volcano.sh/apis/pkg/apis/batch/v1alpha1"
	bus "volcano.sh/apis/pkg/apis/bus/v1alpha1"
	scheduling "volcano.sh/apis/pkg/apis/scheduling/v1beta1"
)

// The typed clientset for Job, Queue, PodGroup and Command.
var volcanoChecks = []check{
	{"job-create-get-list", jobCreateGetList},
	{"job-generate-name", jobGenerateName},
	{"job-dry-run", jobDryRun},
	{"job-update", jobUpdate},
	{"job-update-status", jobUpdateStatus},
	{"job-patch", jobPatch},
	{"job-refusals", jobRefusals},
	{"job-concurrent-updates", jobConcurrentUpdates},
	{"queue-life", queueLife},
	{"podgroup-life", podGroupLife},
	{"command-life", commandLife},
}

func newJob(name string, labels map[string]string) *batch.Job {
	return &batch.Job{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Spec: batch.JobSpec{
			MinAvailable: 1,
			Tasks: []batch.TaskSpec{{
				Name:     "main",
				Replicas: 1,
				Template: corev1.PodTemplateSpec{Spec: podSpec()},
			}},
		},
	}
}

func podSpec() corev1.PodSpec {
	return corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever,
		Containers: []corev1.Container{{
			Name:    "main",
			Image:   "busybox",
			Command: []string{"sleep", "1"},
			Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{"cpu": resource.MustParse("100m")},
			},
		}},
	}
}

func jobCreateGetList(e *env) {
	jobs := e.volcano.BatchV1alpha1().Jobs(e.namespace)
	for index, color := range []string{"red", "blue", "red"} {
		name := fmt.Sprintf("%s-%d", e.name, index)
		created := must(jobs.Create(e.ctx, newJob(name, map[string]string{"color": color}), metav1.CreateOptions{}))
		same("queue", created.Spec.Queue, "default")
		same("max retry", created.Spec.MaxRetry, 3)
		if created.UID == "" || created.ResourceVersion == "" || created.CreationTimestamp.IsZero() {
			fail("the server gave no identity: %+v", created.ObjectMeta)
		}
		got := must(jobs.Get(e.ctx, name, metav1.GetOptions{}))
		same("version", got.ResourceVersion, created.ResourceVersion)
		cpu := got.Spec.Tasks[0].Template.Spec.Containers[0].Resources.Requests.Cpu()
		same("cpu", cpu.MilliValue(), 100)
	}
	for selector, count := range map[string]int{
		"color=red": 2, "color!=red,color": 1, "color in (red,blue)": 3, "color notin (red),color": 1,
	} {
		found := must(jobs.List(e.ctx, metav1.ListOptions{LabelSelector: selector}))
		same(selector, len(found.Items), count)
	}
	byName := metav1.ListOptions{FieldSelector: "metadata.name=" + e.name + "-1"}
	same("by name", len(must(jobs.List(e.ctx, byName)).Items), 1)
	_, err := jobs.List(e.ctx, metav1.ListOptions{FieldSelector: "spec.queue=default"})
	refused("unknown field selector", err, apierrors.IsBadRequest)

	page := must(jobs.List(e.ctx, metav1.ListOptions{LabelSelector: "color", Limit: 2}))
	same("first page", len(page.Items), 2)
	rest := must(jobs.List(e.ctx, metav1.ListOptions{LabelSelector: "color", Limit: 2, Continue: page.Continue}))
	same("second page", len(rest.Items), 1)
	same("no third page", rest.Continue, "")
	every := must(e.volcano.BatchV1alpha1().Jobs(metav1.NamespaceAll).List(e.ctx, metav1.ListOptions{LabelSelector: "color"}))
	same("all namespaces", len(every.Items), 3)
	done(jobs.DeleteCollection(e.ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "color=red"}))
	e.until("the red ones deleted", func() bool {
		return len(must(jobs.List(e.ctx, metav1.ListOptions{LabelSelector: "color"})).Items) == 1
	})
}

func jobGenerateName(e *env) {
	job := newJob("", nil)
	job.GenerateName = e.name + "-"
	jobs := e.volcano.BatchV1alpha1().Jobs(e.namespace)
	one := must(jobs.Create(e.ctx, job, metav1.CreateOptions{}))
	other := must(jobs.Create(e.ctx, job, metav1.CreateOptions{}))
	if one.Name == other.Name || len(one.Name) != len(e.name)+6 {
		fail("names: %s and %s", one.Name, other.Name)
	}
}

func jobDryRun(e *env) {
	jobs := e.volcano.BatchV1alpha1().Jobs(e.namespace)
	options := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	same("queue", must(jobs.Create(e.ctx, newJob(e.name, nil), options)).Spec.Queue, "default")
	_, err := jobs.Get(e.ctx, e.name, metav1.GetOptions{})
	refused("an object that was not created", err, apierrors.IsNotFound)
}

func jobUpdate(e *env) {
	jobs := e.volcano.BatchV1alpha1().Jobs(e.namespace)
	created := must(jobs.Create(e.ctx, newJob(e.name, nil), metav1.CreateOptions{}))
	same("generation", created.Generation, 1)
	stale := created.DeepCopy()
	created.Annotations = map[string]string{"a": "b"}
	marked := must(jobs.Update(e.ctx, created, metav1.UpdateOptions{}))
	same("generation after metadata", marked.Generation, 1)
	marked.Spec.PriorityClassName = "low"
	changed := must(jobs.Update(e.ctx, marked, metav1.UpdateOptions{}))
	same("generation after spec", changed.Generation, 2)
	again := must(jobs.Update(e.ctx, changed, metav1.UpdateOptions{}))
	same("version without a change", again.ResourceVersion, changed.ResourceVersion)
	_, err := jobs.Update(e.ctx, stale, metav1.UpdateOptions{})
	refused("a stale update", err, apierrors.IsConflict)
}

func jobUpdateStatus(e *env) {
	jobs := e.volcano.BatchV1alpha1().Jobs(e.namespace)
	job := newJob(e.name, nil)
	job.Status.Running = 5
	created := must(jobs.Create(e.ctx, job, metav1.CreateOptions{}))
	same("status of a new object", created.Status.Running, 0)
	created.Status.Running = 7
	created.Status.State.Phase = batch.Running
	created.Status.State.LastTransitionTime = metav1.Now()
	created.Spec.PriorityClassName = "ignored"
	updated := must(jobs.UpdateStatus(e.ctx, created, metav1.UpdateOptions{}))
	same("status", updated.Status.Running, 7)
	same("spec by way of status", updated.Spec.PriorityClassName, "")
	same("generation", updated.Generation, 1)
	updated.Status.Running = 1
	kept := must(jobs.Update(e.ctx, updated, metav1.UpdateOptions{}))
	same("status by way of the object", kept.Status.Running, 7)
	kept.Status.State.Phase = "Wrong"
	_, err := jobs.UpdateStatus(e.ctx, kept, metav1.UpdateOptions{})
	refused("an unknown phase", err, apierrors.IsInvalid)
}

func jobPatch(e *env) {
	jobs := e.volcano.BatchV1alpha1().Jobs(e.namespace)
	created := must(jobs.Create(e.ctx, newJob(e.name, nil), metav1.CreateOptions{}))
	patch := func(kind types.PatchType, text string, subresources ...string) (*batch.Job, error) {
		return jobs.Patch(e.ctx, e.name, kind, []byte(text), metav1.PatchOptions{}, subresources...)
	}
	merged := must(patch(types.MergePatchType, `{"metadata":{"labels":{"a":"b"}},"spec":{"maxRetry":7}}`))
	same("label", merged.Labels["a"], "b")
	same("max retry", merged.Spec.MaxRetry, 7)
	edited := must(patch(types.JSONPatchType,
		`[{"op":"test","path":"/spec/maxRetry","value":7},{"op":"replace","path":"/spec/maxRetry","value":9},{"op":"remove","path":"/metadata/labels/a"}]`))
	same("max retry", edited.Spec.MaxRetry, 9)
	same("labels", len(edited.Labels), 0)
	_, err := patch(types.JSONPatchType, `[{"op":"test","path":"/spec/maxRetry","value":1}]`)
	refused("a test that fails", err, apierrors.IsInvalid)
	_, err = patch(types.StrategicMergePatchType, `{"spec":{"maxRetry":1}}`)
	refused("a strategic merge of a custom kind", err, apierrors.IsUnsupportedMediaType)
	_, err = patch(types.MergePatchType, fmt.Sprintf(`{"metadata":{"resourceVersion":%q,"labels":{"c":"d"}}}`, created.ResourceVersion))
	refused("a patch of a stale version", err, apierrors.IsConflict)
	updated := must(patch(types.MergePatchType, `{"status":{"succeeded":2},"spec":{"maxRetry":1}}`, "status"))
	same("status", updated.Status.Succeeded, 2)
	same("spec by way of status", updated.Spec.MaxRetry, 9)
}

func jobRefusals(e *env) {
	jobs := e.volcano.BatchV1alpha1().Jobs(e.namespace)
	must(jobs.Create(e.ctx, newJob(e.name, nil), metav1.CreateOptions{}))
	_, err := jobs.Create(e.ctx, newJob(e.name, nil), metav1.CreateOptions{})
	refused("a second of the name", err, apierrors.IsAlreadyExists)
	_, err = jobs.Get(e.ctx, "missing", metav1.GetOptions{})
	refused("missing", err, apierrors.IsNotFound)
	wrong := newJob(e.name+"-wrong", nil)
	wrong.Spec.MinAvailable = -1
	wrong.Spec.Queue = "No Queue"
	_, err = jobs.Create(e.ctx, wrong, metav1.CreateOptions{})
	refused("a job against the schema", err, apierrors.IsInvalid)
	var status apierrors.APIStatus = err.(*apierrors.StatusError)
	causes := map[string]bool{}
	for _, cause := range status.Status().Details.Causes {
		causes[cause.Field] = true
	}
	same("causes", causes, map[string]bool{"spec.minAvailable": true, "spec.queue": true})
	_, err = jobs.Create(e.ctx, newJob("Bad_Name", nil), metav1.CreateOptions{})
	refused("a bad name", err, apierrors.IsInvalid)
	_, err = e.volcano.BatchV1alpha1().Jobs("nowhere").Create(e.ctx, newJob(e.name, nil), metav1.CreateOptions{})
	refused("a namespace that is not there", err, apierrors.IsNotFound)
}

func jobConcurrentUpdates(e *env) {
	jobs := e.volcano.BatchV1alpha1().Jobs(e.namespace)
	must(jobs.Create(e.ctx, newJob(e.name, nil), metav1.CreateOptions{}))
	const writers = 8
	failures := make(chan error, writers)
	var group sync.WaitGroup
	for writer := range writers {
		group.Go(func() {
			backoff := retry.DefaultRetry // each time one of them gets through
			backoff.Steps = 100
			failures <- retry.RetryOnConflict(backoff, func() error {
				job, err := jobs.Get(e.ctx, e.name, metav1.GetOptions{})
				if err != nil {
					return err
				}
				if job.Annotations == nil {
					job.Annotations = map[string]string{}
				}
				job.Annotations[fmt.Sprint("writer-", writer)] = "was here"
				_, err = jobs.Update(e.ctx, job, metav1.UpdateOptions{})
				return err
			})
		})
	}
	group.Wait()
	for range writers {
		done(<-failures)
	}
	same("marks", len(must(jobs.Get(e.ctx, e.name, metav1.GetOptions{})).Annotations), writers)
}

func queueLife(e *env) {
	queues := e.volcano.SchedulingV1beta1().Queues()
	queue := &scheduling.Queue{ObjectMeta: metav1.ObjectMeta{Name: e.name}}
	queue.Spec.Capability = corev1.ResourceList{"cpu": resource.MustParse("2"), "memory": resource.MustParse("1Gi")}
	created := must(queues.Create(e.ctx, queue, metav1.CreateOptions{}))
	same("weight", created.Spec.Weight, 1)
	created.Status.State = scheduling.QueueStateOpen
	created.Status.Allocated = corev1.ResourceList{"cpu": resource.MustParse("1")}
	updated := must(queues.UpdateStatus(e.ctx, created, metav1.UpdateOptions{}))
	same("state", updated.Status.State, "Open")
	updated.Spec.Weight = 4
	same("weight", must(queues.Update(e.ctx, updated, metav1.UpdateOptions{})).Spec.Weight, 4)
	found := must(queues.List(e.ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + e.name}))
	same("found", len(found.Items), 1)
	updated = must(queues.Get(e.ctx, e.name, metav1.GetOptions{}))
	updated.Spec.Weight = -1
	_, err := queues.Update(e.ctx, updated, metav1.UpdateOptions{})
	refused("a negative weight", err, apierrors.IsInvalid)
	done(queues.Delete(e.ctx, e.name, metav1.DeleteOptions{}))
	_, err = queues.Get(e.ctx, e.name, metav1.GetOptions{})
	refused("what was deleted", err, apierrors.IsNotFound)
}

func podGroupLife(e *env) {
	groups := e.volcano.SchedulingV1beta1().PodGroups(e.namespace)
	group := &scheduling.PodGroup{ObjectMeta: metav1.ObjectMeta{Name: e.name}}
	group.Spec.MinMember = 2
	group.Spec.MinTaskMember = map[string]int32{"main": 2}
	group.Status.Phase = scheduling.PodGroupPending
	created := must(groups.Create(e.ctx, group, metav1.CreateOptions{}))
	// Its status is a part of the object like any other.
	same("phase of a new one", created.Status.Phase, "Pending")
	created.Status.Phase = scheduling.PodGroupInqueue
	updated := must(groups.Update(e.ctx, created, metav1.UpdateOptions{}))
	same("phase", updated.Status.Phase, "Inqueue")
	_, err := groups.UpdateStatus(e.ctx, updated, metav1.UpdateOptions{})
	refused("a status subresource", err, apierrors.IsNotFound)
	patch := []byte(`{"status":{"running":2}}`)
	same("running", must(groups.Patch(e.ctx, e.name, types.MergePatchType, patch, metav1.PatchOptions{})).Status.Running, 2)
	done(groups.Delete(e.ctx, e.name, metav1.DeleteOptions{}))
}

func commandLife(e *env) {
	job := must(e.volcano.BatchV1alpha1().Jobs(e.namespace).Create(e.ctx, newJob(e.name, nil), metav1.CreateOptions{}))
	commands := e.volcano.BusV1alpha1().Commands(e.namespace)
	created := must(commands.Create(e.ctx, newCommand(bus.AbortJobAction, batch.SchemeGroupVersion.String(), "Job", job), metav1.CreateOptions{}))
	same("action", created.Action, "AbortJob")
	same("target", created.TargetObject.UID, job.UID)
	got := must(commands.Get(e.ctx, created.Name, metav1.GetOptions{}))
	if string(must(json.Marshal(got.TargetObject))) != string(must(json.Marshal(created.TargetObject))) {
		fail("target: %v is not %v", got.TargetObject, created.TargetObject)
	}
	done(commands.Delete(e.ctx, created.Name, metav1.DeleteOptions{}))
}

func newCommand(action bus.Action, apiVersion, kind string, target metav1.Object) *bus.Command {
	return &bus.Command{
		ObjectMeta: metav1.ObjectMeta{GenerateName: target.GetName() + "-"},
		Action:     string(action),
		TargetObject: &metav1.OwnerReference{
			APIVersion: apiVersion, Kind: kind, Name: target.GetName(), UID: target.GetUID(),
		},
	}
}
