package main

import (
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"
	clientwatch "k8s.io/client-go/tools/watch"
	batch "volcano.sh/apis/pkg/apis/batch/v1alpha1"
	"volcano.sh/apis/pkg/client/informers/externalversions"
)

// Informers, listers and bare watches.
var watchChecks = []check{
	{"volcano-informers", volcanoInformers},
	{"core-informers", coreInformers},
	{"metadata-informer", metadataInformer},
	{"watch-list-streaming", watchListStreaming},
	{"watch-from-a-version", watchFromAVersion},
	{"watch-expired", watchExpired},
	{"retry-watcher", retryWatcher},
}

// Events of an informer about objects whose names start with a prefix.
type eventLog struct {
	mutex sync.Mutex
	lines []string
}

func (t *eventLog) handlers() cache.ResourceEventHandler {
	add := func(verb string, object any) {
		if deleted, is := object.(cache.DeletedFinalStateUnknown); is {
			object = deleted.Obj
		}
		t.mutex.Lock()
		defer t.mutex.Unlock()
		t.lines = append(t.lines, verb+" "+object.(metav1.Object).GetName())
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { add("add", object) },
		UpdateFunc: func(_, object any) { add("update", object) },
		DeleteFunc: func(object any) { add("delete", object) },
	}
}

func (t *eventLog) contains(lines ...string) bool {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	return fmt.Sprint(t.lines) == fmt.Sprint(lines)
}

func (t *eventLog) last() string {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	return t.lines[len(t.lines)-1]
}

func selecting(e *env) func(*metav1.ListOptions) {
	return func(options *metav1.ListOptions) { options.LabelSelector = "check=" + e.name }
}

func marked(e *env) map[string]string { return map[string]string{"check": e.name} }

func volcanoInformers(e *env) {
	jobs := e.volcano.BatchV1alpha1().Jobs(e.namespace)
	first := must(jobs.Create(e.ctx, newJob(e.name+"-a", marked(e)), metav1.CreateOptions{}))
	factory := externalversions.NewSharedInformerFactoryWithOptions(
		e.volcano, 0, externalversions.WithTweakListOptions(selecting(e)))
	informer := factory.Batch().V1alpha1().Jobs()
	seen := &eventLog{}
	must(informer.Informer().AddEventHandler(seen.handlers()))
	factory.Scheduling().V1beta1().Queues().Informer()
	factory.Scheduling().V1beta1().PodGroups().Informer()
	factory.Bus().V1alpha1().Commands().Informer()
	factory.Start(e.ctx.Done())
	for kind, synced := range factory.WaitForCacheSync(e.ctx.Done()) {
		if !synced {
			fail("%v never synced", kind)
		}
	}
	e.until("the first", func() bool { return seen.contains("add " + first.Name) })
	second := must(jobs.Create(e.ctx, newJob(e.name+"-b", marked(e)), metav1.CreateOptions{}))
	must(jobs.Create(e.ctx, newJob(e.name+"-unseen", nil), metav1.CreateOptions{}))
	first.Status.Running = 1
	must(jobs.UpdateStatus(e.ctx, first, metav1.UpdateOptions{}))
	done(jobs.Delete(e.ctx, second.Name, metav1.DeleteOptions{}))
	e.until("all", func() bool {
		return seen.contains("add "+first.Name, "add "+second.Name, "update "+first.Name, "delete "+second.Name)
	})
	listed := must(informer.Lister().Jobs(e.namespace).List(labels.Everything()))
	same("listed", len(listed), 1)
	same("running", must(informer.Lister().Jobs(e.namespace).Get(first.Name)).Status.Running, 1)
}

func coreInformers(e *env) {
	factory := informers.NewSharedInformerFactoryWithOptions(
		e.core, 0, informers.WithNamespace(e.namespace), informers.WithTweakListOptions(selecting(e)))
	pods := factory.Core().V1().Pods()
	seen := &eventLog{}
	must(pods.Informer().AddEventHandler(seen.handlers()))
	done(pods.Informer().AddIndexers(cache.Indexers{"image": func(object any) ([]string, error) {
		return []string{object.(*corev1.Pod).Spec.Containers[0].Image}, nil
	}}))
	factory.Core().V1().ConfigMaps().Informer()
	factory.Core().V1().Secrets().Informer()
	factory.Core().V1().Services().Informer()
	factory.Core().V1().Nodes().Informer()
	factory.Apps().V1().Deployments().Informer()
	factory.Policy().V1().PodDisruptionBudgets().Informer()
	factory.Scheduling().V1().PriorityClasses().Informer()
	factory.Start(e.ctx.Done())
	for kind, synced := range factory.WaitForCacheSync(e.ctx.Done()) {
		if !synced {
			fail("%v never synced", kind)
		}
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: e.name, Labels: marked(e)}, Spec: podSpec()}
	created := must(e.core.CoreV1().Pods(e.namespace).Create(e.ctx, pod, metav1.CreateOptions{}))
	e.until("the pod", func() bool { return seen.contains("add " + e.name) })
	same("by image", len(must(pods.Informer().GetIndexer().ByIndex("image", "busybox"))), 1)
	same("uid", must(pods.Lister().Pods(e.namespace).Get(e.name)).UID, created.UID)
	now := metav1.DeleteOptions{GracePeriodSeconds: new(int64)}
	done(e.core.CoreV1().Pods(e.namespace).Delete(e.ctx, e.name, now))
	e.until("its end", func() bool { return seen.last() == "delete "+e.name })
}

func metadataInformer(e *env) {
	jobs := e.volcano.BatchV1alpha1().Jobs(e.namespace)
	must(jobs.Create(e.ctx, newJob(e.name, marked(e)), metav1.CreateOptions{}))
	factory := metadatainformer.NewFilteredSharedInformerFactory(
		e.metadata, 0, e.namespace, metadatainformer.TweakListOptionsFunc(selecting(e)))
	resource := batch.SchemeGroupVersion.WithResource("jobs")
	informer := factory.ForResource(resource)
	seen := &eventLog{}
	must(informer.Informer().AddEventHandler(seen.handlers()))
	factory.Start(e.ctx.Done())
	e.until("the job", func() bool { return seen.contains("add " + e.name) })
	partial := must(informer.Lister().ByNamespace(e.namespace).Get(e.name)).(*metav1.PartialObjectMetadata)
	same("label", partial.Labels["check"], e.name)
	got := must(e.metadata.Resource(resource).Namespace(e.namespace).Get(e.ctx, e.name, metav1.GetOptions{}))
	same("uid", got.UID, partial.UID)
}

func watchListStreaming(e *env) {
	jobs := e.volcano.BatchV1alpha1().Jobs(e.namespace)
	for index := range 3 {
		must(jobs.Create(e.ctx, newJob(fmt.Sprintf("%s-%d", e.name, index), marked(e)), metav1.CreateOptions{}))
	}
	yes := true
	options := metav1.ListOptions{
		SendInitialEvents:    &yes,
		AllowWatchBookmarks:  true,
		ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
		LabelSelector:        "check=" + e.name,
	}
	stream := must(jobs.Watch(e.ctx, options))
	defer stream.Stop()
	for range 3 {
		same("kind of event", (<-stream.ResultChan()).Type, watch.Added)
	}
	end := <-stream.ResultChan()
	same("after the first ones", end.Type, watch.Bookmark)
	annotations := end.Object.(*batch.Job).Annotations
	same("end of the first ones", annotations[metav1.InitialEventsAnnotationKey], "true")
	must(jobs.Create(e.ctx, newJob(e.name+"-later", marked(e)), metav1.CreateOptions{}))
	later := <-stream.ResultChan()
	for later.Type == watch.Bookmark {
		later = <-stream.ResultChan()
	}
	same("a later event", later.Object.(*batch.Job).Name, e.name+"-later")
}

func watchFromAVersion(e *env) {
	jobs := e.volcano.BatchV1alpha1().Jobs(e.namespace)
	job := must(jobs.Create(e.ctx, newJob(e.name, marked(e)), metav1.CreateOptions{}))
	job.Labels["check"] = "other"
	must(jobs.Update(e.ctx, job, metav1.UpdateOptions{}))
	options := metav1.ListOptions{LabelSelector: "check=" + e.name, ResourceVersion: job.ResourceVersion}
	stream := must(jobs.Watch(e.ctx, options))
	defer stream.Stop()
	left := <-stream.ResultChan()
	same("what leaves the selection", left.Type, watch.Deleted)
	same("its name", left.Object.(*batch.Job).Name, e.name)
}

func watchExpired(e *env) {
	stream := must(e.core.CoreV1().ConfigMaps(e.namespace).Watch(e.ctx, metav1.ListOptions{ResourceVersion: "1"}))
	defer stream.Stop()
	for event := range stream.ResultChan() {
		// A server may still have its first version; what it must not do is to leave out events.
		if event.Type == watch.Error {
			same("code", event.Object.(*metav1.Status).Code, 410)
		}
		return
	}
	fail("the stream ended without an error")
}

func retryWatcher(e *env) {
	maps := e.core.CoreV1().ConfigMaps(e.namespace)
	before := must(maps.List(e.ctx, metav1.ListOptions{})).ResourceVersion
	source := cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListFunc: func(options metav1.ListOptions) (runtime.Object, error) {
			return maps.List(e.ctx, options)
		},
		WatchFunc: func(options metav1.ListOptions) (watch.Interface, error) {
			options.FieldSelector = "metadata.name=" + e.name
			return maps.Watch(e.ctx, options)
		},
	}, e.core)
	stream := must(clientwatch.NewRetryWatcher(before, source))
	defer stream.Stop()
	must(maps.Create(e.ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: e.name}}, metav1.CreateOptions{}))
	same("the map", (<-stream.ResultChan()).Object.(*corev1.ConfigMap).Name, e.name)
}
