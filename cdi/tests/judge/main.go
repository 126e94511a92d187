// Command judge says what upstream's CDI library makes of CDI files.
//
// It is a filter. Every line of standard input is a JSON string, the whole text
// of one file; for every line exactly one line of JSON goes to standard output:
//
//	"{\"cdiVersion\": …}"  ──▶  {"loaded":true,"lowest":"0.5.0","injected":true,"env":["A=1"],…}
//	"{\"cdiVersion\": …}"  ──▶  {"loaded":false,"error":"…",…}
//
// It does what a container runtime does: the file is put into a directory, the
// directory is loaded as a cache, and every device of it is injected into an
// empty OCI spec. Nothing is decided here.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	specs "tags.cncf.io/container-device-interface/specs-go"
)

// verdict is what the library says of one file.
type verdict struct {
	// Loaded is whether a runtime would know the devices of the file.
	Loaded bool `json:"loaded"`
	// Lowest is the lowest version of the format that has what the file uses.
	Lowest string `json:"lowest"`
	// Injected is whether a container could have all devices on this host.
	Injected bool `json:"injected"`
	// Error is the reason where the file is not loaded or not injected.
	Error string `json:"error"`
	// Env is the environment of a container with all devices.
	Env []string `json:"env"`
	// Nodes are its device nodes.
	Nodes []oci.LinuxDevice `json:"nodes"`
	// Access is what it may do with devices.
	Access []oci.LinuxDeviceCgroup `json:"access"`
	// Mounts are its mounts.
	Mounts []oci.Mount `json:"mounts"`
}

func main() {
	if err := serve(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "judge: %v\n", err)
		os.Exit(1)
	}
}

// serve answers every line of in on out until in ends.
func serve(in io.Reader, out io.Writer) error {
	dir, err := os.MkdirTemp("", "cdi-judge-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 16<<20)
	answers := json.NewEncoder(out)
	for lines.Scan() {
		var text string
		if err := json.Unmarshal(lines.Bytes(), &text); err != nil {
			return fmt.Errorf("a line is not a JSON string: %w", err)
		}
		if err := answers.Encode(judge(dir, []byte(text))); err != nil {
			return err
		}
	}
	return lines.Err()
}

// judge loads one file as a runtime does and injects all its devices.
func judge(dir string, text []byte) verdict {
	path := filepath.Join(dir, "file.json")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		return verdict{Error: err.Error()}
	}
	cache, err := cdi.NewCache(cdi.WithSpecDirs(dir), cdi.WithAutoRefresh(false))
	if err != nil {
		return verdict{Error: err.Error()}
	}
	if err := errors.Join(cache.GetErrors()[path]...); err != nil {
		return verdict{Error: err.Error()}
	}
	answer := verdict{Loaded: true}
	for _, vendor := range cache.ListVendors() {
		for _, spec := range cache.GetVendorSpecs(vendor) {
			lowest, err := specs.MinimumRequiredVersion(spec.Spec)
			if err != nil {
				return verdict{Error: err.Error()}
			}
			answer.Lowest = lowest
		}
	}
	container := &oci.Spec{Process: &oci.Process{}, Linux: &oci.Linux{Resources: &oci.LinuxResources{}}}
	if _, err := cache.InjectDevices(container, cache.ListDevices()...); err != nil {
		answer.Error = err.Error()
		return answer
	}
	answer.Injected = true
	answer.Env = container.Process.Env
	answer.Nodes = container.Linux.Devices
	answer.Access = container.Linux.Resources.Devices
	answer.Mounts = container.Mounts
	return answer
}
