package main

import (
	"net/http"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"volcano.sh/apis/pkg/client/clientset/versioned"
)

// The forms in which objects travel.
var wireChecks = []check{
	{"wire-protobuf", protobuf},
	{"wire-protobuf-watch", protobufWatch},
	{"wire-protobuf-for-custom-kinds", protobufForCustomKinds},
	{"wire-cbor-falls-back", cborFallsBack},
	{"wire-gzip", gzipped},
}

// Records the content types of requests and responses.
type listener struct {
	inner         http.RoundTripper
	mutex         sync.Mutex
	sent, got     map[string]bool
	sentEncodings map[string]bool
}

func (l *listener) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := l.inner.RoundTrip(request)
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if request.Body != nil {
		l.sent[request.Header.Get("Content-Type")] = true
	}
	if err == nil {
		l.got[strings.Split(response.Header.Get("Content-Type"), ";")[0]] = true
		l.sentEncodings[response.Header.Get("Content-Encoding")] = true
	}
	return response, err
}

// A copy of the configuration, in which one can listen.
func (e *env) listening() (*rest.Config, *listener) {
	recorded := &listener{sent: map[string]bool{}, got: map[string]bool{}, sentEncodings: map[string]bool{}}
	config := rest.CopyConfig(e.config)
	config.Wrap(func(inner http.RoundTripper) http.RoundTripper {
		recorded.inner = inner
		return recorded
	})
	return config, recorded
}

func inProtobuf(config *rest.Config) *rest.Config {
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	return config
}

func protobuf(e *env) {
	config, recorded := e.listening()
	client := must(kubernetes.NewForConfig(inProtobuf(config)))
	pods := client.CoreV1().Pods(e.namespace)
	pod := newPod(e.name)
	pod.Labels = marked(e)
	created := must(pods.Create(e.ctx, pod, metav1.CreateOptions{}))
	same("cpu", created.Spec.Containers[0].Resources.Requests.Cpu().MilliValue(), 100)
	created.Annotations = map[string]string{"a": "b"}
	changed := must(pods.Update(e.ctx, created, metav1.UpdateOptions{}))
	same("annotation", changed.Annotations["a"], "b")
	listed := must(pods.List(e.ctx, metav1.ListOptions{LabelSelector: "check=" + e.name}))
	same("listed", len(listed.Items), 1)
	same("command", listed.Items[0].Spec.Containers[0].Command, []string{"sleep", "1"})
	changed.Status.Phase = corev1.PodRunning
	same("phase", must(pods.UpdateStatus(e.ctx, changed, metav1.UpdateOptions{})).Status.Phase, "Running")
	done(pods.Bind(e.ctx, binding(changed, "nowhere"), metav1.CreateOptions{}))
	now := metav1.DeleteOptions{GracePeriodSeconds: new(int64)}
	done(pods.Delete(e.ctx, e.name, now))
	same("sent", recorded.sent[runtime.ContentTypeProtobuf], true)
}

func protobufWatch(e *env) {
	config, _ := e.listening()
	client := must(kubernetes.NewForConfig(inProtobuf(config)))
	maps := client.CoreV1().ConfigMaps(e.namespace)
	stream := must(maps.Watch(e.ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + e.name}))
	defer stream.Stop()
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: e.name}, Data: map[string]string{"a": "b"}}
	must(maps.Create(e.ctx, object, metav1.CreateOptions{}))
	event := <-stream.ResultChan()
	same("event", event.Type, watch.Added)
	same("data", event.Object.(*corev1.ConfigMap).Data, object.Data)
}

func protobufForCustomKinds(e *env) {
	config, _ := e.listening()
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	jobs := must(versioned.NewForConfig(config)).BatchV1alpha1().Jobs(e.namespace)
	must(jobs.Create(e.ctx, newJob(e.name, nil), metav1.CreateOptions{}))
	same("queue", must(jobs.Get(e.ctx, e.name, metav1.GetOptions{})).Spec.Queue, "default")
}

func cborFallsBack(e *env) {
	config, recorded := e.listening()
	config.AcceptContentTypes = runtime.ContentTypeCBOR + ";q=1," + runtime.ContentTypeJSON + ";q=0.9"
	jobs := must(dynamic.NewForConfig(config)).Resource(jobsResource).Namespace(e.namespace)
	_, err := jobs.Create(e.ctx, e.rawJob(), metav1.CreateOptions{})
	if apierrors.IsUnsupportedMediaType(err) {
		// A client that prefers CBOR learns by this that it has to write JSON.
		_, err = jobs.Create(e.ctx, e.rawJob(), metav1.CreateOptions{})
	}
	done(err)
	must(jobs.List(e.ctx, metav1.ListOptions{}))
	same("JSON", recorded.got[runtime.ContentTypeJSON], true)
}

func gzipped(e *env) {
	maps := e.core.CoreV1().ConfigMaps(e.namespace)
	long := map[string]string{"long": strings.Repeat("a long text ", 30000)}
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: e.name}, Data: long}
	must(maps.Create(e.ctx, object, metav1.CreateOptions{}))
	same("data", len(must(maps.Get(e.ctx, e.name, metav1.GetOptions{})).Data["long"]), len(long["long"]))
}
