package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

const (
	finalizer   = "operator.example.com/clean-up"
	defaultSize = 2
	maxSize     = 3
	rejection   = "a widget has no more than three pods"
)

var kind = schema.GroupVersionKind{Group: "operator.example.com", Version: "v1", Kind: "Widget"}

func newEnvironment() *envtest.Environment {
	path, validatePath := "/mutate", "/validate"
	none, fail := admissionv1.SideEffectClassNone, admissionv1.Fail
	rules := []admissionv1.RuleWithOperations{{
		Operations: []admissionv1.OperationType{admissionv1.Create, admissionv1.Update},
		Rule: admissionv1.Rule{
			APIGroups: []string{kind.Group}, APIVersions: []string{kind.Version}, Resources: []string{"widgets"},
		},
	}}
	at := func(path *string) admissionv1.WebhookClientConfig {
		return admissionv1.WebhookClientConfig{Service: &admissionv1.ServiceReference{Path: path}}
	}
	mutating := &admissionv1.MutatingWebhookConfiguration{
		TypeMeta:   metav1.TypeMeta{APIVersion: "admissionregistration.k8s.io/v1", Kind: "MutatingWebhookConfiguration"},
		ObjectMeta: metav1.ObjectMeta{Name: "widgets-default"},
		Webhooks: []admissionv1.MutatingWebhook{{
			Name: "default.operator.example.com", ClientConfig: at(&path), Rules: rules, SideEffects: &none,
			FailurePolicy: &fail, AdmissionReviewVersions: []string{"v1"},
		}},
	}
	validating := &admissionv1.ValidatingWebhookConfiguration{
		TypeMeta:   metav1.TypeMeta{APIVersion: "admissionregistration.k8s.io/v1", Kind: "ValidatingWebhookConfiguration"},
		ObjectMeta: metav1.ObjectMeta{Name: "widgets-validate"},
		Webhooks: []admissionv1.ValidatingWebhook{{
			Name: "validate.operator.example.com", ClientConfig: at(&validatePath), Rules: rules, SideEffects: &none,
			FailurePolicy: &fail, AdmissionReviewVersions: []string{"v1"},
		}},
	}
	return &envtest.Environment{
		CRDs:              []*apiextensionsv1.CustomResourceDefinition{definition()},
		CRDInstallOptions: envtest.CRDInstallOptions{CleanUpAfterUse: true},
		WebhookInstallOptions: envtest.WebhookInstallOptions{
			MutatingWebhooks:   []*admissionv1.MutatingWebhookConfiguration{mutating},
			ValidatingWebhooks: []*admissionv1.ValidatingWebhookConfiguration{validating},
		},
	}
}

func definition() *apiextensionsv1.CustomResourceDefinition {
	counts := func(name string) apiextensionsv1.JSONSchemaProps {
		return apiextensionsv1.JSONSchemaProps{
			Type:       "object",
			Properties: map[string]apiextensionsv1.JSONSchemaProps{name: {Type: "integer"}},
		}
	}
	openAPI := &apiextensionsv1.JSONSchemaProps{
		Type: "object",
		Properties: map[string]apiextensionsv1.JSONSchemaProps{
			"spec": counts("size"), "status": counts("ready"),
		},
	}
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "widgets." + kind.Group},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: kind.Group,
			Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "widgets", Kind: kind.Kind},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: kind.Version, Served: true, Storage: true,
				Schema:       &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: openAPI},
				Subresources: &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}},
			}},
		},
	}
}

// serveWebhooks serves where envtest has registered the webhooks.
func serveWebhooks(ctx context.Context, hooks *envtest.WebhookInstallOptions) {
	server := webhook.NewServer(webhook.Options{
		Host: hooks.LocalServingHost, Port: hooks.LocalServingPort, CertDir: hooks.LocalServingCertDir,
	})
	server.Register("/mutate", &webhook.Admission{Handler: admission.HandlerFunc(setDefaults)})
	server.Register("/validate", &webhook.Admission{Handler: admission.HandlerFunc(validate)})
	if err := server.Start(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "cannot serve webhooks:", err)
	}
}

func setDefaults(_ context.Context, request admission.Request) admission.Response {
	widget := map[string]any{}
	if err := json.Unmarshal(request.Object.Raw, &widget); err != nil {
		return admission.Errored(http.StatusBadRequest, err)
	}
	if _, found, _ := unstructured.NestedFieldNoCopy(widget, "spec", "size"); found {
		return admission.Allowed("")
	}
	if err := unstructured.SetNestedField(widget, int64(defaultSize), "spec", "size"); err != nil {
		return admission.Errored(http.StatusBadRequest, err)
	}
	changed, err := json.Marshal(widget)
	if err != nil {
		return admission.Errored(http.StatusInternalServerError, err)
	}
	return admission.PatchResponseFromRaw(request.Object.Raw, changed)
}

func validate(_ context.Context, request admission.Request) admission.Response {
	widget := &unstructured.Unstructured{}
	if err := widget.UnmarshalJSON(request.Object.Raw); err != nil {
		return admission.Errored(http.StatusBadRequest, err)
	}
	if sizeOf(widget) > maxSize {
		return admission.Denied(rejection)
	}
	return admission.Allowed("")
}

// startManager runs a manager that waits for the lease; the channel is closed when it has ended.
func startManager(ctx context.Context, restConfig *rest.Config) (context.CancelFunc, <-chan struct{}, error) {
	lease, renew, retry, skip := 15*time.Second, 10*time.Second, 200*time.Millisecond, true
	manager, err := ctrl.NewManager(restConfig, ctrl.Options{
		Scheme:                        scheme.Scheme,
		Metrics:                       metricsserver.Options{BindAddress: "0"},
		LeaderElection:                true,
		LeaderElectionID:              leaseName,
		LeaderElectionNamespace:       namespace,
		LeaderElectionReleaseOnCancel: true,
		LeaseDuration:                 &lease,
		RenewDeadline:                 &renew,
		RetryPeriod:                   &retry,
		Controller:                    config.Controller{SkipNameValidation: &skip}, // two managers in one process
	})
	if err != nil {
		return nil, nil, err
	}
	widget := &unstructured.Unstructured{}
	widget.SetGroupVersionKind(kind)
	err = ctrl.NewControllerManagedBy(manager).For(widget).Owns(&appsv1.Deployment{}).Complete(
		&reconciler{Client: manager.GetClient(), scheme: manager.GetScheme()})
	if err != nil {
		return nil, nil, err
	}
	running, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := manager.Start(running); err != nil {
			fmt.Fprintln(os.Stderr, "the manager ended:", err)
		}
	}()
	return stop, done, nil
}

// reconciler keeps a Deployment for each Widget, and reports how many of its pods are ready.
type reconciler struct {
	client.Client
	scheme *runtime.Scheme
}

func (r *reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	widget := newWidget(request.Name)
	if err := r.Get(ctx, request.NamespacedName, widget); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !widget.GetDeletionTimestamp().IsZero() {
		return ctrl.Result{}, r.cleanUp(ctx, widget)
	}
	if controllerutil.AddFinalizer(widget, finalizer) {
		return ctrl.Result{}, r.Update(ctx, widget) // which is another event
	}
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: request.Namespace, Name: request.Name}}
	_, err := controllerutil.CreateOrUpdate(ctx, r.Client, deployment, func() error {
		setPods(deployment, request.Name, sizeOf(widget))
		return controllerutil.SetControllerReference(widget, deployment, r.scheme)
	})
	if err != nil {
		return ctrl.Result{}, err
	}
	before := widget.DeepCopy()
	if err := unstructured.SetNestedField(widget.Object, int64(deployment.Status.ReadyReplicas), "status", "ready"); err != nil {
		return ctrl.Result{}, err
	}
	return ctrl.Result{}, r.Status().Patch(ctx, widget, client.MergeFrom(before))
}

func (r *reconciler) cleanUp(ctx context.Context, widget *unstructured.Unstructured) error {
	marker := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: widget.GetNamespace(), Name: "cleaned-up-" + widget.GetName()},
	}
	if err := r.Create(ctx, marker); client.IgnoreAlreadyExists(err) != nil {
		return err
	}
	controllerutil.RemoveFinalizer(widget, finalizer)
	return r.Update(ctx, widget)
}

func setPods(deployment *appsv1.Deployment, name string, size int64) {
	replicas, labels := int32(size), map[string]string{"widget": name}
	deployment.Spec.Replicas = &replicas
	deployment.Spec.Selector = &metav1.LabelSelector{MatchLabels: labels}
	deployment.Spec.Template.Labels = labels
	if len(deployment.Spec.Template.Spec.Containers) == 0 {
		deployment.Spec.Template.Spec.Containers = []corev1.Container{{
			Name: "main", Image: "busybox", Command: []string{"sleep", "3600"},
		}}
	}
}

func sizeOf(widget *unstructured.Unstructured) int64 {
	size, _, _ := unstructured.NestedInt64(widget.Object, "spec", "size")
	return size
}
