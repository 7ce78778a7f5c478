// Builds Helm for machines that have none; the tests render and check the chart with it.
package main

import (
	"fmt"
	"os"

	"helm.sh/helm/v4/pkg/cmd"
	// Credential plugins of client-go, as upstream's own main has them, are left out: the tests
	// use a kubeconfig with a token.
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
