// Command oracle137 is the second judge of Aliquot's allocator: it answers with
// what the structured allocator of Kubernetes 1.37 does.
//
// It is a filter with the protocol of the first judge (../oracle/README.md), and
// knows the operations "allocate" and "fill" alone. The allocator of
// k8s.io/dynamic-resource-allocation is called as the scheduler's plugin calls
// it, with the features that a 1.37 scheduler has by default. Nothing is decided
// here.
//
// Invariants: a line never ends the process, whatever it holds; an answer
// carries the id of its request; "fatal" means that the question was not
// understood, and is never an upstream verdict.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
)

func main() {
	// Upstream logs to standard error by default; the one channel of this
	// program is its answers.
	klog.SetLogger(logr.Discard())

	if err := serve(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "oracle137: %v\n", err)
		os.Exit(1)
	}
}

// serve answers every line of in on out until in ends.
func serve(in io.Reader, out io.Writer) error {
	reader := bufio.NewReaderSize(in, 1<<20)
	for {
		line, readErr := reader.ReadBytes('\n')
		if line = bytes.TrimSpace(line); len(line) > 0 {
			if _, err := out.Write(append(answerTo(line), '\n')); err != nil {
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

// fatal says that a request was not understood.
type fatal struct {
	ID    string `json:"id"`
	Fatal string `json:"fatal"`
}

// answerTo turns one request line into one answer line, without the newline.
func answerTo(line []byte) (answer []byte) {
	var req request
	defer func() {
		// A panic of upstream is an answer about this line alone.
		if p := recover(); p != nil {
			answer = encode(fatal{req.ID, fmt.Sprintf("panic: %v\n%s", p, debug.Stack())})
		}
	}()
	if err := json.Unmarshal(line, &req); err != nil {
		return encode(fatal{req.ID, err.Error()})
	}
	var result any
	var err error
	switch req.Op {
	case "allocate":
		result, err = allocate(&req)
	case "fill":
		result, err = fill(&req)
	default:
		err = fmt.Errorf("op: %q is unknown, expected allocate or fill", req.Op)
	}
	if err != nil {
		return encode(fatal{req.ID, err.Error()})
	}
	return encode(result)
}

func encode(answer any) []byte {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	// CEL messages are full of < and >, which people want to read.
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(answer); err != nil {
		return fmt.Appendf(nil, `{"id":"","fatal":%q}`, "encode answer: "+err.Error())
	}
	return bytes.TrimRight(text.Bytes(), "\n")
}
