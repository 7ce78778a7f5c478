// Builds Helm for machines without it; the tests render and lint the chart with it.
package main

import (
	"fmt"
	"os"

	"helm.sh/helm/v4/pkg/cmd"
	// Unlike upstream's main, without credential plugins of client-go: the tests use a
	// kubeconfig with a token.
)

func main() {
	root, err := cmd.NewRootCmd(os.Stdout, os.Args[1:], cmd.SetupLogging)
	if err == nil {
		err = root.Execute()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}
