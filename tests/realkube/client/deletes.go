package main

import (
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	batch "volcano.sh/apis/pkg/apis/batch/v1alpha1"
)

// Deletion: preconditions, finalizers, dependents. The garbage collector must run.
var deleteChecks = []check{
	{"delete-preconditions", deletePreconditions},
	{"delete-finalizers", deleteFinalizers},
	{"delete-background", deleteBackground},
	{"delete-foreground", deleteForeground},
	{"delete-orphan", deleteOrphan},
}

func deletePreconditions(e *env) {
	jobs := e.volcano.BatchV1alpha1().Jobs(e.namespace)
	created := must(jobs.Create(e.ctx, newJob(e.name, nil), metav1.CreateOptions{}))
	other, stale := types.UID("other"), "1"
	for _, condition := range []metav1.Preconditions{{UID: &other}, {ResourceVersion: &stale}} {
		err := jobs.Delete(e.ctx, e.name, metav1.DeleteOptions{Preconditions: &condition})
		refused("a delete of another", err, apierrors.IsConflict)
	}
	fits := metav1.Preconditions{UID: &created.UID, ResourceVersion: &created.ResourceVersion}
	done(jobs.Delete(e.ctx, e.name, metav1.DeleteOptions{Preconditions: &fits}))
	refused("a second delete", jobs.Delete(e.ctx, e.name, metav1.DeleteOptions{}), apierrors.IsNotFound)
}

func deleteFinalizers(e *env) {
	jobs := e.volcano.BatchV1alpha1().Jobs(e.namespace)
	job := newJob(e.name, nil)
	job.Finalizers = []string{"example.com/wait"}
	must(jobs.Create(e.ctx, job, metav1.CreateOptions{}))
	done(jobs.Delete(e.ctx, e.name, metav1.DeleteOptions{}))
	waiting := must(jobs.Get(e.ctx, e.name, metav1.GetOptions{}))
	if waiting.DeletionTimestamp == nil {
		fail("it is not being deleted")
	}
	waiting.Finalizers = append(waiting.Finalizers, "example.com/second")
	_, err := jobs.Update(e.ctx, waiting, metav1.UpdateOptions{})
	refused("one more finalizer", err, apierrors.IsInvalid)
	waiting.Finalizers = nil
	must(jobs.Update(e.ctx, waiting, metav1.UpdateOptions{}))
	_, err = jobs.Get(e.ctx, e.name, metav1.GetOptions{})
	refused("the deleted", err, apierrors.IsNotFound)
}

// A job that owns a map of its name, and a garbage collector that knows it.
func owner(e *env) *batch.Job {
	job := must(e.volcano.BatchV1alpha1().Jobs(e.namespace).Create(e.ctx, newJob(e.name, nil), metav1.CreateOptions{}))
	e.ownedMap(e.name, job)
	e.mapsNoticed()
	return job
}

func (e *env) ownedMap(name string, job *batch.Job) {
	owned := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
	owned.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(job, batch.SchemeGroupVersion.WithKind("Job"))}
	must(e.core.CoreV1().ConfigMaps(e.namespace).Create(e.ctx, owned, metav1.CreateOptions{}))
}

// Waits until the garbage collector knows the owners of the maps: it receives their events in order, and takes
// away what a job owns that never was. An owner deleted before that leaves no orphans, nor waits
// for its dependents.
func (e *env) mapsNoticed() {
	ghost := newJob("ghost", nil)
	ghost.UID = uuid.NewUUID()
	witness := e.name + "-witness"
	e.ownedMap(witness, ghost)
	e.until("the witness deleted", func() bool { return e.mapGone(witness) })
}

func (e *env) deleteJob(policy metav1.DeletionPropagation) {
	options := metav1.DeleteOptions{PropagationPolicy: &policy}
	done(e.volcano.BatchV1alpha1().Jobs(e.namespace).Delete(e.ctx, e.name, options))
}

func (e *env) jobGone() bool {
	_, err := e.volcano.BatchV1alpha1().Jobs(e.namespace).Get(e.ctx, e.name, metav1.GetOptions{})
	return apierrors.IsNotFound(err)
}

func (e *env) mapGone(name string) bool {
	_, err := e.core.CoreV1().ConfigMaps(e.namespace).Get(e.ctx, name, metav1.GetOptions{})
	return apierrors.IsNotFound(err)
}

func deleteBackground(e *env) {
	owner(e)
	e.deleteJob(metav1.DeletePropagationBackground)
	same("the owner is deleted", e.jobGone(), true)
	e.until("the dependent deleted", func() bool { return e.mapGone(e.name) })
}

func deleteForeground(e *env) {
	owner(e)
	maps := e.core.CoreV1().ConfigMaps(e.namespace)
	held := []byte(`{"metadata":{"finalizers":["example.com/wait"]}}`)
	must(maps.Patch(e.ctx, e.name, types.MergePatchType, held, metav1.PatchOptions{}))
	e.deleteJob(metav1.DeletePropagationForeground)
	waiting := must(e.volcano.BatchV1alpha1().Jobs(e.namespace).Get(e.ctx, e.name, metav1.GetOptions{}))
	same("finalizers", waiting.Finalizers, []string{metav1.FinalizerDeleteDependents})
	e.until("the owned on its way", func() bool {
		return must(maps.Get(e.ctx, e.name, metav1.GetOptions{})).DeletionTimestamp != nil
	})
	same("the owner is deleted", e.jobGone(), false)
	must(maps.Patch(e.ctx, e.name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}))
	e.until("both deleted", func() bool { return e.mapGone(e.name) && e.jobGone() })
}

func deleteOrphan(e *env) {
	owner(e)
	e.deleteJob(metav1.DeletePropagationOrphan)
	e.until("the owner deleted", e.jobGone)
	left := must(e.core.CoreV1().ConfigMaps(e.namespace).Get(e.ctx, e.name, metav1.GetOptions{}))
	same("owners", len(left.OwnerReferences), 0)
}
