package main

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	batch "volcano.sh/apis/pkg/apis/batch/v1alpha1"
	bus "volcano.sh/apis/pkg/apis/bus/v1alpha1"
	scheduling "volcano.sh/apis/pkg/apis/scheduling/v1beta1"
	"volcano.sh/apis/pkg/client/informers/externalversions"
	listers "volcano.sh/apis/pkg/client/listers/batch/v1alpha1"
)

// What a user's Go program does with a whole platform.
var lifeChecks = []check{
	{"life-completed", lifeCompleted},
	{"life-suspended-and-resumed", lifeSuspendedAndResumed},
	{"life-queue-closed-and-opened", lifeQueueClosedAndOpened},
}

// Jobs of an informer, and their pods.
func (e *env) lives() (listers.JobLister, cache.SharedIndexInformer) {
	factory := externalversions.NewSharedInformerFactory(e.volcano, 0)
	jobs := factory.Batch().V1alpha1().Jobs()
	jobs.Informer()
	factory.Start(e.ctx.Done())
	factory.WaitForCacheSync(e.ctx.Done())
	core := informers.NewSharedInformerFactory(e.core, 0)
	pods := core.Core().V1().Pods().Informer()
	core.Start(e.ctx.Done())
	core.WaitForCacheSync(e.ctx.Done())
	return jobs.Lister(), pods
}

func (e *env) untilPhase(jobs listers.JobLister, phase batch.JobPhase) *batch.Job {
	var last *batch.Job
	defer func() {
		if broken := recover(); broken != nil {
			panic(failure{fmt.Sprintf("%v; the last that was seen: %+v", broken, last)})
		}
	}()
	e.until(string(phase), func() bool {
		job, err := jobs.Jobs(e.namespace).Get(e.name)
		last = job
		return err == nil && job.Status.State.Phase == phase
	})
	return last
}

func (e *env) submit(replicas int32, seconds string) {
	job := newJob(e.name, nil)
	job.Spec.MinAvailable = replicas
	job.Spec.Tasks[0].Replicas = replicas
	job.Spec.Tasks[0].Template.Spec.Containers[0].Command = []string{"sleep", seconds}
	job.Spec.Policies = []batch.LifecyclePolicy{{Event: bus.TaskCompletedEvent, Action: bus.CompleteJobAction}}
	must(e.volcano.BatchV1alpha1().Jobs(e.namespace).Create(e.ctx, job, metav1.CreateOptions{}))
}

func (e *env) command(action bus.Action, apiVersion, kind string, target metav1.Object) {
	commands := e.volcano.BusV1alpha1().Commands("default")
	command := newCommand(action, apiVersion, kind, target)
	created := must(commands.Create(e.ctx, command, metav1.CreateOptions{}))
	e.until("the command executed", func() bool {
		_, err := commands.Get(e.ctx, created.Name, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
}

func lifeCompleted(e *env) {
	jobs, pods := e.lives()
	e.submit(3, "0.1")
	completed := e.untilPhase(jobs, batch.Completed)
	same("succeeded", completed.Status.Succeeded, 3)
	e.until("three pods that succeeded", func() bool {
		count := 0
		for _, each := range pods.GetStore().List() {
			pod := each.(*corev1.Pod)
			if pod.Labels[batch.JobNameKey] == e.name && pod.Status.Phase == corev1.PodSucceeded {
				count++
			}
		}
		return count == 3
	})
}

func lifeSuspendedAndResumed(e *env) {
	jobs, _ := e.lives()
	e.submit(2, "600")
	running := e.untilPhase(jobs, batch.Running)
	version := batch.SchemeGroupVersion.String()
	e.command(bus.AbortJobAction, version, "Job", running)
	e.untilPhase(jobs, batch.Aborted)
	e.command(bus.ResumeJobAction, version, "Job", running)
	again := e.untilPhase(jobs, batch.Running)
	same("retries", again.Status.RetryCount, 0)
	done(e.volcano.BatchV1alpha1().Jobs(e.namespace).Delete(e.ctx, e.name, metav1.DeleteOptions{}))
}

func lifeQueueClosedAndOpened(e *env) {
	queues := e.volcano.SchedulingV1beta1().Queues()
	queue := &scheduling.Queue{ObjectMeta: metav1.ObjectMeta{Name: e.name}}
	created := must(queues.Create(e.ctx, queue, metav1.CreateOptions{}))
	state := func(wanted scheduling.QueueState) func() bool {
		return func() bool {
			return must(queues.Get(e.ctx, e.name, metav1.GetOptions{})).Status.State == wanted
		}
	}
	e.until("open", state(scheduling.QueueStateOpen))
	version := scheduling.SchemeGroupVersion.String()
	e.command(bus.CloseQueueAction, version, "Queue", created)
	e.until("closed", state(scheduling.QueueStateClosed))
	jobs := e.volcano.BatchV1alpha1().Jobs(e.namespace)
	job := newJob(e.name, nil)
	job.Spec.Queue = e.name
	e.until("closed for jobs", func() bool {
		// Webhooks read queues from a cache, which may be stale.
		_, err := jobs.Create(e.ctx, job, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err != nil
	})
	_, err := jobs.Create(e.ctx, job, metav1.CreateOptions{})
	refused("a job for a closed queue", err, func(error) bool { return true })
	e.command(bus.OpenQueueAction, version, "Queue", created)
	e.until("open again", state(scheduling.QueueStateOpen))
	must(jobs.Create(e.ctx, job, metav1.CreateOptions{}))
}
