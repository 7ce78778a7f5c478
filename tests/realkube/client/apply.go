package main

import (
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1 "k8s.io/client-go/applyconfigurations/core/v1"
	batch "volcano.sh/apis/pkg/client/applyconfiguration/batch/v1alpha1"
	scheduling "volcano.sh/apis/pkg/client/applyconfiguration/scheduling/v1beta1"
)

// Server-side apply by typed apply configurations.
var applyChecks = []check{
	{"apply-job", applyJob},
	{"apply-queue-status", applyQueueStatus},
	{"apply-configmap", applyConfigMap},
}

func by(manager string) metav1.ApplyOptions {
	return metav1.ApplyOptions{FieldManager: manager}
}

func applyJob(e *env) {
	jobs := e.volcano.BatchV1alpha1().Jobs(e.namespace)
	template := corev1.PodTemplateSpec().WithSpec(corev1.PodSpec().
		WithContainers(corev1.Container().WithName("main").WithImage("busybox")))
	wanted := func(retries int32) *batch.JobApplyConfiguration {
		return batch.Job(e.name, e.namespace).WithSpec(batch.JobSpec().
			WithMinAvailable(1).WithMaxRetry(retries).
			WithTasks(batch.TaskSpec().WithName("main").WithReplicas(1).WithTemplate(template)))
	}
	created := must(jobs.Apply(e.ctx, wanted(3), by("one")))
	same("managers", len(created.ManagedFields), 1)
	same("manager", created.ManagedFields[0].Manager, "one")
	again := must(jobs.Apply(e.ctx, wanted(3), by("one")))
	same("version without a change", again.ResourceVersion, created.ResourceVersion)
	_, err := jobs.Apply(e.ctx, wanted(4), by("other"))
	refused("another manager's field", err, apierrors.IsConflict)
	force := by("other")
	force.Force = true
	same("max retry", must(jobs.Apply(e.ctx, wanted(4), force)).Spec.MaxRetry, 4)
}

func applyQueueStatus(e *env) {
	queues := e.volcano.SchedulingV1beta1().Queues()
	must(queues.Apply(e.ctx, scheduling.Queue(e.name).WithSpec(scheduling.QueueSpec().WithWeight(2)), by("one")))
	status := scheduling.Queue(e.name).WithStatus(scheduling.QueueStatus().WithState("Open"))
	updated := must(queues.ApplyStatus(e.ctx, status, by("other")))
	same("state", updated.Status.State, "Open")
	same("weight", updated.Spec.Weight, 2)
}

func applyConfigMap(e *env) {
	maps := e.core.CoreV1().ConfigMaps(e.namespace)
	wanted := func(data map[string]string) *corev1.ConfigMapApplyConfiguration {
		return corev1.ConfigMap(e.name, e.namespace).WithData(data)
	}
	must(maps.Apply(e.ctx, wanted(map[string]string{"a": "1", "b": "2"}), by("one")))
	must(maps.Apply(e.ctx, wanted(map[string]string{"c": "3"}), by("other")))
	left := must(maps.Apply(e.ctx, wanted(map[string]string{"a": "1"}), by("one")))
	same("data", left.Data, map[string]string{"a": "1", "c": "3"})
}
