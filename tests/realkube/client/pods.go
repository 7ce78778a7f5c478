package main

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/scheme"
	typedcore "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/tools/record"
)

// What schedulers, kubelets and operators do with pods, nodes, Events and Leases.
var podChecks = []check{
	{"pod-binding", podBinding},
	{"pod-status", podStatus},
	{"pod-eviction", podEviction},
	{"pod-eviction-by-budget", podEvictionByBudget},
	{"pod-strategic-merge", podStrategicMerge},
	{"events-core", eventsCore},
	{"events-v1", eventsV1},
	{"leader-election", leaderElection},
}

func newPod(name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: podSpec()}
}

func (e *env) createPod(name string) *corev1.Pod {
	return must(e.core.CoreV1().Pods(e.namespace).Create(e.ctx, newPod(name), metav1.CreateOptions{}))
}

// A node of the check's name, and its pod bound to it.
func (e *env) boundPod() *corev1.Pod {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: e.name}}
	must(e.core.CoreV1().Nodes().Create(e.ctx, node, metav1.CreateOptions{}))
	pod := e.createPod(e.name)
	done(e.core.CoreV1().Pods(e.namespace).Bind(e.ctx, binding(pod, e.name), metav1.CreateOptions{}))
	return must(e.core.CoreV1().Pods(e.namespace).Get(e.ctx, e.name, metav1.GetOptions{}))
}

func binding(pod *corev1.Pod, node string) *corev1.Binding {
	return &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace, UID: pod.UID},
		Target:     corev1.ObjectReference{Kind: "Node", Name: node},
	}
}

func podBinding(e *env) {
	pods := e.core.CoreV1().Pods(e.namespace)
	pod := e.createPod(e.name + "-free")
	wrong := binding(pod, "node")
	wrong.UID = "other"
	refused("a binding of another pod", pods.Bind(e.ctx, wrong, metav1.CreateOptions{}), apierrors.IsConflict)
	bound := e.boundPod()
	same("node", bound.Spec.NodeName, e.name)
	same("condition", bound.Status.Conditions[0].Type, "PodScheduled")
	refused("a second binding", pods.Bind(e.ctx, binding(bound, "other"), metav1.CreateOptions{}), apierrors.IsConflict)
	on := metav1.ListOptions{FieldSelector: "spec.nodeName=" + e.name}
	same("pods of the node", len(must(pods.List(e.ctx, on)).Items), 1)
}

func podStatus(e *env) {
	pods := e.core.CoreV1().Pods(e.namespace)
	pod := e.boundPod()
	pod.Status.Phase = corev1.PodRunning
	pod.Status.PodIP = "10.0.0.1"
	updated := must(pods.UpdateStatus(e.ctx, pod, metav1.UpdateOptions{}))
	same("phase", updated.Status.Phase, "Running")
	text := []byte(`{"status":{"conditions":[{"type":"Ready","status":"True"}]}}`)
	patched := must(pods.Patch(e.ctx, e.name, types.StrategicMergePatchType, text, metav1.PatchOptions{}, "status"))
	same("conditions", len(patched.Status.Conditions), 2)
	running := metav1.ListOptions{FieldSelector: "status.phase=Running,metadata.name=" + e.name}
	same("running", len(must(pods.List(e.ctx, running)).Items), 1)
	patched.Spec.Containers[0].Command = []string{"other"}
	_, err := pods.Update(e.ctx, patched, metav1.UpdateOptions{})
	refused("a change of what is fixed", err, apierrors.IsInvalid)
}

func podEviction(e *env) {
	pods := e.core.CoreV1().Pods(e.namespace)
	e.createPod(e.name)
	done(pods.EvictV1(e.ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: e.name}}))
	_, err := pods.Get(e.ctx, e.name, metav1.GetOptions{})
	refused("the evicted, which no node had", err, apierrors.IsNotFound)
	err = pods.EvictV1(e.ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "missing"}})
	refused("an eviction of a missing pod", err, apierrors.IsNotFound)
}

func podEvictionByBudget(e *env) {
	pods := e.core.CoreV1().Pods(e.namespace)
	least := intstr.FromInt32(1)
	budget := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: e.name},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MinAvailable: &least,
			Selector:     &metav1.LabelSelector{MatchLabels: map[string]string{"check": e.name}},
		},
	}
	budget = must(e.core.PolicyV1().PodDisruptionBudgets(e.namespace).Create(e.ctx, budget, metav1.CreateOptions{}))
	budgets := e.core.PolicyV1().PodDisruptionBudgets(e.namespace)
	allows := func(healthy, disruptions int32) {
		e.until("the budget is counted", func() bool {
			status := must(budgets.Get(e.ctx, e.name, metav1.GetOptions{})).Status
			counted := status.ObservedGeneration == budget.Generation && status.CurrentHealthy == healthy
			return counted && status.DisruptionsAllowed == disruptions
		})
	}
	evict := func(name string) error {
		return pods.EvictV1(e.ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: e.name}}
	must(e.core.CoreV1().Nodes().Create(e.ctx, node, metav1.CreateOptions{}))
	e.readyPod(e.name)
	allows(1, 0)
	refused("an eviction below the budget", evict(e.name), apierrors.IsTooManyRequests)
	e.readyPod(e.name + "-2")
	allows(2, 1)
	done(evict(e.name))
	refused("an eviction of the last one", evict(e.name+"-2"), apierrors.IsTooManyRequests)
}

// A running pod of a name, labelled for the check's budget, on the check's node.
func (e *env) readyPod(name string) {
	pods := e.core.CoreV1().Pods(e.namespace)
	pod := newPod(name)
	pod.Labels = map[string]string{"check": e.name}
	pod = must(pods.Create(e.ctx, pod, metav1.CreateOptions{}))
	done(pods.Bind(e.ctx, binding(pod, e.name), metav1.CreateOptions{}))
	ready := []byte(`{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}`)
	must(pods.Patch(e.ctx, name, types.StrategicMergePatchType, ready, metav1.PatchOptions{}, "status"))
}

func podStrategicMerge(e *env) {
	pods := e.core.CoreV1().Pods(e.namespace)
	e.createPod(e.name)
	text := []byte(`{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"main","image":"other"}]}}`)
	patched := must(pods.Patch(e.ctx, e.name, types.StrategicMergePatchType, text, metav1.PatchOptions{}))
	same("image", patched.Spec.Containers[0].Image, "other")
	same("command", patched.Spec.Containers[0].Command, []string{"sleep", "1"})
}

func eventsCore(e *env) {
	pod := e.createPod(e.name)
	broadcaster := record.NewBroadcaster(record.WithContext(e.ctx))
	defer broadcaster.Shutdown()
	sink := &typedcore.EventSinkImpl{Interface: e.core.CoreV1().Events(e.namespace)}
	broadcaster.StartRecordingToSink(sink)
	recorder := broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "client"})
	of := metav1.ListOptions{FieldSelector: "involvedObject.name=" + pod.Name + ",reason=Tried"}
	counts := func(count int32) func() bool {
		return func() bool {
			found := must(e.core.CoreV1().Events(e.namespace).List(e.ctx, of)).Items
			return len(found) == 1 && found[0].Count == count
		}
	}
	recorder.Event(pod, corev1.EventTypeNormal, "Tried", "again")
	e.until("the event", counts(1))
	recorder.Event(pod, corev1.EventTypeNormal, "Tried", "again")
	e.until("its repetition", counts(2))
}

func eventsV1(e *env) {
	pod := e.createPod(e.name)
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: e.core.EventsV1()})
	defer broadcaster.Shutdown()
	done(broadcaster.StartRecordingToSinkWithContext(e.ctx))
	recorder := broadcaster.NewRecorder(scheme.Scheme, "example.com/client")
	recorder.Eventf(pod, nil, corev1.EventTypeNormal, "Tried", "Trying", "tried %s", pod.Name)
	e.until("the event", func() bool {
		of := metav1.ListOptions{FieldSelector: "regarding.name=" + pod.Name + ",reason=Tried"}
		found := must(e.core.EventsV1().Events(e.namespace).List(e.ctx, of)).Items
		return len(found) == 1 && found[0].Note == "tried "+pod.Name
	})
}

func leaderElection(e *env) {
	lead := func(ctx context.Context, identity string, started chan<- string) <-chan struct{} {
		lock := &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Name: e.name, Namespace: e.namespace},
			Client:     e.core.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: identity},
		}
		elector := must(leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
			Lock:            lock,
			LeaseDuration:   30 * time.Second, // no machine is busy for so long
			RenewDeadline:   25 * time.Second,
			RetryPeriod:     200 * time.Millisecond,
			ReleaseOnCancel: true,
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: func(context.Context) { started <- identity },
				OnStoppedLeading: func() {},
			},
		}))
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			elector.Run(ctx)
		}()
		return ended
	}
	started := make(chan string, 2)
	first, resign := context.WithCancel(e.ctx)
	defer resign()
	ended := lead(first, "first", started)
	same("leader", <-started, "first")
	second, stop := context.WithCancel(e.ctx)
	defer stop()
	lead(second, "second", started)
	lease := must(e.core.CoordinationV1().Leases(e.namespace).Get(e.ctx, e.name, metav1.GetOptions{}))
	same("holder", *lease.Spec.HolderIdentity, "first")
	resign()
	<-ended
	same("successor", <-started, "second")
	lease = must(e.core.CoordinationV1().Leases(e.namespace).Get(e.ctx, e.name, metav1.GetOptions{}))
	same("transitions", *lease.Spec.LeaseTransitions, 1)
}
