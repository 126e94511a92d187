// Command dashboards checks dashboards against the schema of Grafana's own SDK: the judge of `tests/tests/agent/dashboards.rs`.
//
//	dashboards FILE…
//
// An unknown field, a value of another type and a query that the data source does not have are errors.
package main

import (
	"fmt"
	"os"

	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
)

func main() {
	plugins.RegisterDefaultPlugins()
	failed := false
	for _, file := range os.Args[1:] {
		if err := check(file); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", file, err)
			failed = true
		}
	}
	if failed || len(os.Args) < 2 {
		os.Exit(1)
	}
}

func check(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var board dashboard.Dashboard
	if err := found(board.UnmarshalJSONStrict(text)); err != nil {
		return err
	}
	return found(board.Validate())
}

// The SDK gives an error without a message where it found nothing.
func found(err error) error {
	if err == nil || err.Error() == "" {
		return nil
	}
	return err
}
