// Command helm renders a chart with Helm's own engine, without a cluster: the judge of `tests/tests/agent/deploy.rs`.
//
//	helm CHART [VALUES.yaml]
//
// It prints the manifests that `helm template aliquot CHART --namespace aliquot` would apply, in Helm's install order.
package main

import (
	"fmt"
	"os"
	"sort"
	"strings"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/releaseutil"
)

func main() {
	if err := render(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "helm:", err)
		os.Exit(1)
	}
}

func render(args []string) error {
	if len(args) < 1 || len(args) > 2 {
		return fmt.Errorf("found %d arguments, expected CHART [VALUES.yaml]", len(args))
	}
	chart, err := loader.Load(args[0])
	if err != nil {
		return err
	}
	values := chartutil.Values{}
	if len(args) == 2 {
		if values, err = chartutil.ReadValuesFile(args[1]); err != nil {
			return err
		}
	}
	release := chartutil.ReleaseOptions{Name: "aliquot", Namespace: "aliquot", Revision: 1, IsInstall: true}
	capabilities := chartutil.DefaultCapabilities.Copy()
	capabilities.KubeVersion = chartutil.KubeVersion{Version: "v1.36.3", Major: "1", Minor: "36"}
	all, err := chartutil.ToRenderValues(chart, values, release, capabilities)
	if err != nil {
		return err
	}
	files, err := engine.Render(chart, all)
	if err != nil {
		return err
	}
	for name := range files {
		if strings.HasSuffix(name, "NOTES.txt") {
			delete(files, name)
		}
	}
	_, manifests, err := releaseutil.SortManifests(files, capabilities.APIVersions, releaseutil.InstallOrder)
	if err != nil {
		return err
	}
	order := map[string]int{}
	for at, kind := range releaseutil.InstallOrder {
		order[kind] = at
	}
	sort.SliceStable(manifests, func(a, b int) bool {
		left, right := manifests[a].Head, manifests[b].Head
		if order[left.Kind] != order[right.Kind] {
			return order[left.Kind] < order[right.Kind]
		}
		return left.Kind+left.Metadata.Name < right.Kind+right.Metadata.Name
	})
	for _, manifest := range manifests {
		fmt.Printf("---\n%s\n", strings.TrimSpace(manifest.Content))
	}
	return nil
}
