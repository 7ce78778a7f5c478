// Builds the real kube-apiserver, kube-controller-manager and kube-scheduler as one program that
// goes by the name it is called by. It serves tests; nothing of it is shipped.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	manager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

var programs = map[string]func() *cobra.Command{
	"kube-apiserver":          apiserver.NewAPIServerCommand,
	"kube-controller-manager": manager.NewControllerManagerCommand,
	"kube-scheduler":          newScheduler,
}

func newScheduler() *cobra.Command { return scheduler.NewSchedulerCommand() }

func main() {
	program, known := programs[filepath.Base(os.Args[0])]
	if !known {
		fmt.Fprintf(os.Stderr, "called as %q; link it as kube-apiserver, kube-controller-manager or kube-scheduler\n", os.Args[0])
		os.Exit(2)
	}
	os.Exit(cli.Run(program()))
}
