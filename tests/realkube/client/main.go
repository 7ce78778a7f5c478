// Checks that Go clients find in an API server what they expect: client-go, and the clientset,
// informers and apply configurations that Volcano publishes. One JSON line a check on stdout:
// {"check": NAME, "ok": BOOL, "error": TEXT}.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"regexp"
	"runtime/debug"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"volcano.sh/apis/pkg/client/clientset/versioned"
)

// Each check has this long, which only keeps a broken one from hanging.
const timeout = 100 * time.Second

// What a check is given: clients, and a namespace that is there.
type env struct {
	ctx       context.Context
	config    *rest.Config
	core      kubernetes.Interface
	volcano   versioned.Interface
	dynamic   dynamic.Interface
	metadata  metadata.Interface
	namespace string
	name      string // of the check, so that objects of different checks differ
}

type check struct {
	name string
	run  func(*env)
}

// What a check panics with when it does not hold.
type failure struct{ text string }

func fail(format string, arguments ...any) {
	panic(failure{fmt.Sprintf(format, arguments...)})
}

func must[T any](value T, err error) T {
	done(err)
	return value
}

func done(err error) {
	if err != nil {
		fail("%T: %v", err, err)
	}
}

func same(what string, got, wanted any) {
	if fmt.Sprint(got) != fmt.Sprint(wanted) {
		fail("%s: got %v, wanted %v", what, got, wanted)
	}
}

// Requires that a call failed, with an error that is() accepts.
func refused(what string, err error, is func(error) bool) {
	if err == nil {
		fail("%s: was not refused", what)
	}
	if !is(err) {
		fail("%s: refused otherwise: %v", what, err)
	}
}

// Waits for something to hold.
func (e *env) until(what string, holds func() bool) {
	again := func(context.Context) (bool, error) { return holds(), nil }
	if err := wait.PollUntilContextCancel(e.ctx, 20*time.Millisecond, true, again); err != nil {
		fail("%s: timed out", what)
	}
}

func run(each check, base env) (message string) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	base.ctx = ctx
	base.name = each.name
	defer func() {
		switch broken := recover().(type) {
		case nil:
		case failure:
			message = broken.text
		default:
			message = fmt.Sprintf("%v\n%s", broken, debug.Stack())
		}
	}()
	each.run(&base)
	return ""
}

func main() {
	kubeconfig := flag.String("kubeconfig", "", "whose server to ask")
	pattern := flag.String("run", ".", "which checks, by a regular expression")
	life := flag.Bool("life", false, "the checks that need controllers, scheduler and nodes")
	namespace := flag.String("namespace", "default", "where")
	flag.Parse()

	config := must(clientcmd.BuildConfigFromFlags("", *kubeconfig))
	config.QPS = -1 // no limit
	base := env{
		config:    config,
		core:      must(kubernetes.NewForConfig(config)),
		volcano:   must(versioned.NewForConfig(config)),
		dynamic:   must(dynamic.NewForConfig(config)),
		metadata:  must(metadata.NewForConfig(config)),
		namespace: *namespace,
	}
	checks := serverChecks()
	if *life {
		checks = lifeChecks
	}
	wanted := regexp.MustCompile(*pattern)
	out := json.NewEncoder(os.Stdout)
	for _, each := range checks {
		if wanted.MatchString(each.name) {
			message := run(each, base)
			done(out.Encode(map[string]any{"check": each.name, "ok": message == "", "error": message}))
		}
	}
}

func serverChecks() []check {
	var found []check
	for _, some := range [][]check{
		volcanoChecks, applyChecks, watchChecks, deleteChecks, podChecks, genericChecks, wireChecks,
	} {
		found = append(found, some...)
	}
	return found
}
