package main

import (
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/openapi"
	"k8s.io/client-go/restmapper"
	"sigs.k8s.io/yaml"
	batch "volcano.sh/apis/pkg/apis/batch/v1alpha1"
)

// Clients that know no kinds beforehand.
var genericChecks = []check{
	{"discovery", discover},
	{"rest-mapper", restMapper},
	{"openapi-v2", openAPIv2},
	{"openapi-v3", openAPI},
	{"dynamic-client", dynamicClient},
	{"dynamic-informer", dynamicInformer},
	{"access-review", accessReview},
}

func discover(e *env) {
	client := e.core.Discovery()
	if version := must(client.ServerVersion()); version.Major != "1" {
		fail("version %v", version)
	}
	found := map[string]metav1.APIResource{}
	e.until("all groups listed", func() bool {
		// A server that adds or removes a group responds that its discovery is incomplete.
		lists, err := client.ServerPreferredResources()
		for _, list := range lists {
			for _, each := range list.APIResources {
				found[each.Name+" "+list.GroupVersion] = each
			}
		}
		return err == nil
	})
	for name, scope := range map[string]bool{
		"jobs batch.volcano.sh/v1alpha1":          true,
		"queues scheduling.volcano.sh/v1beta1":    false,
		"podgroups scheduling.volcano.sh/v1beta1": true,
		"commands bus.volcano.sh/v1alpha1":        true,
		"pods v1":                                 true,
		"leases coordination.k8s.io/v1":           true,
	} {
		each, is := found[name]
		same(name+" is there", is, true)
		same(name+" is namespaced", each.Namespaced, scope)
	}
	resources := map[string]bool{}
	for _, each := range must(client.ServerResourcesForGroupVersion("batch.volcano.sh/v1alpha1")).APIResources {
		resources[each.Name] = true
	}
	same("subresources of a job", resources["jobs"] && resources["jobs/status"], true)
}

func restMapper(e *env) {
	cached := memory.NewMemCacheClient(e.core.Discovery())
	mapper := restmapper.NewShortcutExpander(restmapper.NewDeferredDiscoveryRESTMapper(cached), cached, nil)
	for short, wanted := range map[string]string{
		"vcjob": "batch.volcano.sh/v1alpha1, Kind=Job", "vj": "batch.volcano.sh/v1alpha1, Kind=Job",
		"q":  "scheduling.volcano.sh/v1beta1, Kind=Queue",
		"pg": "scheduling.volcano.sh/v1beta1, Kind=PodGroup", "po": "/v1, Kind=Pod",
	} {
		same(short, must(mapper.KindFor(schema.GroupVersionResource{Resource: short})), wanted)
	}
	mapping := must(mapper.RESTMapping(batch.SchemeGroupVersion.WithKind("Job").GroupKind()))
	same("resource", mapping.Resource.Resource, "jobs")
}

// In protobuf, as the clients of versions without OpenAPI v3 and some programs of today read it.
func openAPIv2(e *env) {
	e.until("kinds described", func() bool {
		found := map[string]bool{}
		for _, each := range must(e.core.Discovery().OpenAPISchema()).GetDefinitions().GetAdditionalProperties() {
			for _, extension := range each.GetValue().GetVendorExtension() {
				var kinds []schema.GroupVersionKind
				if extension.GetName() == "x-kubernetes-group-version-kind" {
					done(yaml.Unmarshal([]byte(extension.GetValue().GetYaml()), &kinds))
				}
				for _, kind := range kinds {
					found[kind.String()] = len(each.GetValue().GetProperties().GetAdditionalProperties()) > 2
				}
			}
		}
		return found["/v1, Kind=Pod"] && found["batch.volcano.sh/v1alpha1, Kind=Job"]
	})
}

func openAPI(e *env) {
	client := e.core.Discovery().OpenAPIV3()
	for _, group := range []string{"api/v1", "apis/batch.volcano.sh/v1alpha1"} {
		// Custom kinds are described a little after they are served.
		e.until(group+" described", func() bool {
			path, is := must(client.Paths())[group]
			return is && len(must(path.Schema(runtime.ContentTypeJSON))) >= 1000
		})
	}
	var _ openapi.Client = client
}

var jobsResource = batch.SchemeGroupVersion.WithResource("jobs")

func (e *env) rawJob() *unstructured.Unstructured {
	job := newJob(e.name, marked(e))
	job.TypeMeta = metav1.TypeMeta{APIVersion: batch.SchemeGroupVersion.String(), Kind: "Job"}
	raw := must(runtime.DefaultUnstructuredConverter.ToUnstructured(job))
	return &unstructured.Unstructured{Object: raw}
}

func dynamicClient(e *env) {
	jobs := e.dynamic.Resource(jobsResource).Namespace(e.namespace)
	created := must(jobs.Create(e.ctx, e.rawJob(), metav1.CreateOptions{}))
	retries, _, err := unstructured.NestedInt64(created.Object, "spec", "maxRetry")
	done(err)
	same("max retry", retries, 3)
	done(unstructured.SetNestedField(created.Object, int64(9), "spec", "maxRetry"))
	must(jobs.Update(e.ctx, created, metav1.UpdateOptions{}))
	listed := must(jobs.List(e.ctx, metav1.ListOptions{LabelSelector: "check=" + e.name}))
	same("listed", len(listed.Items), 1)
	same("kind of the list", listed.GetKind(), "JobList")
	done(unstructured.SetNestedField(listed.Items[0].Object, "Running", "status", "state", "phase"))
	must(jobs.UpdateStatus(e.ctx, &listed.Items[0], metav1.UpdateOptions{}))
	done(jobs.Delete(e.ctx, e.name, metav1.DeleteOptions{}))
}

func dynamicInformer(e *env) {
	factory := dynamicinformer.NewFilteredDynamicSharedInformerFactory(e.dynamic, 0, e.namespace, selecting(e))
	informer := factory.ForResource(jobsResource)
	seen := &eventLog{}
	must(informer.Informer().AddEventHandler(seen.handlers()))
	factory.Start(e.ctx.Done())
	factory.WaitForCacheSync(e.ctx.Done())
	must(e.dynamic.Resource(jobsResource).Namespace(e.namespace).Create(e.ctx, e.rawJob(), metav1.CreateOptions{}))
	e.until("the job", func() bool { return seen.contains("add " + e.name) })
}

func accessReview(e *env) {
	review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Namespace: e.namespace, Verb: "create", Group: "batch.volcano.sh", Resource: "jobs",
		},
	}}
	result := must(e.core.AuthorizationV1().SelfSubjectAccessReviews().Create(e.ctx, review, metav1.CreateOptions{}))
	same("allowed", result.Status.Allowed, true)
}
