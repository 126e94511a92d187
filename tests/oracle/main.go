// Command oracle is the judge of Aliquot's allocator, selectors and published
// objects: it answers with what upstream Kubernetes itself does.
//
// It is a filter. Every line of standard input is one request, a JSON object;
// for every request exactly one line of JSON goes to standard output, in the
// order of the requests:
//
//	{"id":"1","op":"allocate",…} ──▶ ┌────────┐ ──▶ {"id":"1","placed":true,…}
//	{"id":"2","op":"cel",…}      ──▶ │ oracle │ ──▶ {"id":"2","result":true,…}
//	not even JSON                ──▶ └────────┘ ──▶ {"id":"","fatal":"…"}
//
// The decisions come from the ordinary upstream modules: the structured
// allocator and the CEL compiler of k8s.io/dynamic-resource-allocation, called
// with the arguments the scheduler's plugin calls them with, and the create
// strategies of the API server of k8s.io/kubernetes. Nothing is decided here.
//
// Invariants: a line never ends the process, whatever it holds; an answer
// carries the id of its request; "fatal" means that the question was not
// understood, and is never an upstream verdict.
//
// README.md describes the protocol.
package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
)

func main() {
	// Upstream logs to standard error by default; the one channel of this
	// program is its answers.
	klog.SetLogger(logr.Discard())

	if err := serve(newJudge(), os.Stdin, os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "oracle: %v\n", err)
		os.Exit(1)
	}
}

// serve answers every line of in on out until in ends. It fails only when in
// cannot be read or out cannot be written.
func serve(j *judge, in io.Reader, out io.Writer) error {
	// Lines are read whole: a cluster of 500 nodes is one line of many MB.
	reader := bufio.NewReaderSize(in, 1<<20)
	writer := bufio.NewWriterSize(out, 1<<20)
	for {
		line, readErr := reader.ReadBytes('\n')
		if line = bytes.TrimSpace(line); len(line) > 0 {
			answer := append(j.answer(line), '\n')
			if _, err := writer.Write(answer); err != nil {
				return fmt.Errorf("write answer: %w", err)
			}
			if err := writer.Flush(); err != nil {
				return fmt.Errorf("write answer: %w", err)
			}
		}
		if errors.Is(readErr, io.EOF) {
			return nil
		}
		if readErr != nil {
			return fmt.Errorf("read request: %w", readErr)
		}
	}
}
