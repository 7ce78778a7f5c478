// An operator written with controller-runtime, which envtest runs on an existing cluster (USE_EXISTING_CLUSTER and
// KUBECONFIG). It prints one line of JSON for each check: its name, and its error, empty where the check holds.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
)

const (
	namespace = "operator-tests"
	leaseName = "widget-operator"
	timeout   = 90 * time.Second
	interval  = 50 * time.Millisecond
)

func main() {
	log.SetLogger(zap.New(zap.WriteTo(os.Stderr)))
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	environment := newEnvironment()
	config, err := environment.Start()
	if err != nil {
		return fmt.Errorf("cannot start the environment: %w", err)
	}
	api, err := client.New(config, client.Options{Scheme: scheme.Scheme})
	if err != nil {
		return err
	}
	if err := api.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}); err != nil {
		return err
	}
	serving, stopServing := context.WithCancel(ctx)
	defer stopServing()
	go serveWebhooks(serving, &environment.WebhookInstallOptions)
	report("a webhook of the operator sets a default", isDefaulted(ctx, api))
	report("a webhook of the operator rejects", isRejected(ctx, api))
	if err := runManagers(ctx, config, api); err != nil {
		return err
	}
	report("the environment removes its definitions", environment.Stop())
	return nil
}

// runManagers lets a second manager take over the lease of the first one, which ends.
func runManagers(ctx context.Context, config *rest.Config, api client.Client) error {
	stopFirst, firstDone, err := startManager(ctx, config)
	if err != nil {
		return err
	}
	report("a reconciler sees its Deployment become available", becomesReady(ctx, api, "first"))
	stopSecond, secondDone, err := startManager(ctx, config)
	if err != nil {
		return err
	}
	stopFirst()
	<-firstDone
	report("a second manager takes over", becomesReady(ctx, api, "second"))
	report("the lease has another holder", hasTransitions(ctx, api))
	report("a finalizer holds a deletion until the operator has cleaned up", isCleanedUp(ctx, api, "second"))
	stopSecond()
	<-secondDone
	return nil
}

func report(name string, err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	line, _ := json.Marshal(map[string]string{"check": name, "error": text})
	fmt.Println(string(line))
}

// eventually polls until the condition holds, and returns its last error if it never does.
func eventually(ctx context.Context, condition func() error) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, interval, timeout, true, func(context.Context) (bool, error) {
		last = condition()
		return last == nil, nil
	})
	if err != nil && last != nil {
		return last
	}
	return err
}

func newWidget(name string) *unstructured.Unstructured {
	widget := &unstructured.Unstructured{}
	widget.SetGroupVersionKind(kind)
	widget.SetNamespace(namespace)
	widget.SetName(name)
	return widget
}

func isDefaulted(ctx context.Context, api client.Client) error {
	return eventually(ctx, func() error {
		widget := newWidget("defaulted")
		if err := api.Create(ctx, widget, client.DryRunAll); err != nil {
			return err
		}
		if size, _, _ := unstructured.NestedInt64(widget.Object, "spec", "size"); size != defaultSize {
			return fmt.Errorf("size is %d", size)
		}
		return nil
	})
}

func isRejected(ctx context.Context, api client.Client) error {
	widget := newWidget("rejected")
	if err := unstructured.SetNestedField(widget.Object, int64(maxSize+1), "spec", "size"); err != nil {
		return err
	}
	err := api.Create(ctx, widget)
	if err == nil || !strings.Contains(err.Error(), rejection) {
		return fmt.Errorf("the answer is %v", err)
	}
	return nil
}

func becomesReady(ctx context.Context, api client.Client, name string) error {
	if err := api.Create(ctx, newWidget(name)); err != nil {
		return err
	}
	return eventually(ctx, func() error {
		widget := newWidget(name)
		if err := api.Get(ctx, client.ObjectKeyFromObject(widget), widget); err != nil {
			return err
		}
		if ready, _, _ := unstructured.NestedInt64(widget.Object, "status", "ready"); ready != defaultSize {
			return fmt.Errorf("%d pods are ready", ready)
		}
		return nil
	})
}

func hasTransitions(ctx context.Context, api client.Client) error {
	lease := &coordinationv1.Lease{}
	if err := api.Get(ctx, client.ObjectKey{Namespace: namespace, Name: leaseName}, lease); err != nil {
		return err
	}
	if count := lease.Spec.LeaseTransitions; count == nil || *count != 1 {
		return fmt.Errorf("the lease is %v", lease.Spec)
	}
	return nil
}

func isCleanedUp(ctx context.Context, api client.Client, name string) error {
	widget := newWidget(name)
	if err := api.Delete(ctx, widget); err != nil {
		return err
	}
	return eventually(ctx, func() error {
		err := api.Get(ctx, client.ObjectKeyFromObject(widget), widget)
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("the widget exists, or %v", err)
		}
		marker := &corev1.ConfigMap{}
		return api.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "cleaned-up-" + name}, marker)
	})
}
