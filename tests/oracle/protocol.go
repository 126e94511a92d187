package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	kjson "sigs.k8s.io/json"
)

// defaultTimeout is the scheduler's own limit for one node
// (DynamicResourcesArgs.filterTimeout).
const defaultTimeout = 10 * time.Second

// request holds the fields of every operation; each operation reads its own.
type request struct {
	ID string `json:"id"`
	Op string `json:"op"`

	// allocate, fill, cluster-fill.
	Node      *corev1.Node                `json:"node,omitempty"`
	Nodes     []*corev1.Node              `json:"nodes,omitempty"`
	Slices    []*resourcev1.ResourceSlice `json:"slices,omitempty"`
	Classes   []*resourcev1.DeviceClass   `json:"classes,omitempty"`
	Claims    []*resourcev1.ResourceClaim `json:"claims,omitempty"`
	Allocated []*resourcev1.ResourceClaim `json:"allocated,omitempty"`
	Features  featureOverrides            `json:"features,omitempty"`
	// TimeoutMS limits one case (allocate) or one decision (fill,
	// cluster-fill), in milliseconds; zero means defaultTimeout.
	TimeoutMS int64 `json:"timeoutMs,omitempty"`

	// fill, cluster-fill.
	Detail bool `json:"detail,omitempty"`

	// cluster-fill.
	TriesPerPod int    `json:"triesPerPod,omitempty"`
	Mode        string `json:"mode,omitempty"`
	Start       string `json:"start,omitempty"`

	// cel.
	Expression string             `json:"expression,omitempty"`
	Driver     string             `json:"driver,omitempty"`
	Device     *resourcev1.Device `json:"device,omitempty"`

	// validate.
	Kind   string          `json:"kind,omitempty"`
	Object json.RawMessage `json:"object,omitempty"`

	// quantity.
	Text string  `json:"text,omitempty"`
	With *string `json:"with,omitempty"`
}

// timeout is the limit of one decision.
func (r *request) timeout() time.Duration {
	if r.TimeoutMS <= 0 {
		return defaultTimeout
	}
	return time.Duration(r.TimeoutMS) * time.Millisecond
}

// fatalAnswer says that a request was not understood.
type fatalAnswer struct {
	ID    string `json:"id"`
	Fatal string `json:"fatal"`
}

// answer turns one request line into one answer line, without the newline.
func (j *judge) answer(line []byte) (answer []byte) {
	var req request
	defer func() {
		// Upstream has panicked on legal input before; that is an
		// answer about this line and no reason to lose the others.
		if p := recover(); p != nil {
			answer = encode(req.ID, fatalAnswer{req.ID, fmt.Sprintf("panic: %v\n%s", p, debug.Stack())})
		}
	}()
	strictErrs, err := kjson.UnmarshalStrict(line, &req)
	if err == nil {
		err = errors.Join(strictErrs...)
	}
	if err == nil {
		defaultObjects(&req)
		var result any
		if result, err = j.dispatch(&req); err == nil {
			return encode(req.ID, result)
		}
	}
	return encode(req.ID, fatalAnswer{requestID(&req, line), err.Error()})
}

// dispatch runs the operation that the request names. An error means that the
// question makes no sense; what upstream says is part of the result.
func (j *judge) dispatch(req *request) (any, error) {
	switch req.Op {
	case "allocate":
		return j.allocate(req)
	case "cel":
		return j.evaluate(req)
	case "validate":
		return j.validate(req)
	case "quantity":
		return j.quantity(req)
	case "fill":
		return j.fill(req)
	case "cluster-fill":
		return j.clusterFill(req)
	default:
		return nil, fmt.Errorf("op: %q is unknown, expected allocate, cel, validate, quantity, fill or cluster-fill", req.Op)
	}
}

// defaultObjects applies the API server's defaults, because the allocator only
// ever sees objects that have been stored.
func defaultObjects(req *request) {
	for _, slice := range req.Slices {
		legacyscheme.Scheme.Default(slice)
	}
	for _, class := range req.Classes {
		legacyscheme.Scheme.Default(class)
	}
	for _, claim := range req.Claims {
		legacyscheme.Scheme.Default(claim)
	}
	for _, claim := range req.Allocated {
		legacyscheme.Scheme.Default(claim)
	}
}

// encode renders an answer; one that cannot be rendered becomes a fatal one.
func encode(id string, answer any) []byte {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	// CEL messages are full of < and >, which people want to read.
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(answer); err != nil {
		return fmt.Appendf(nil, `{"id":%q,"fatal":%q}`, id, "encode answer: "+err.Error())
	}
	return bytes.TrimRight(text.Bytes(), "\n")
}

// requestID finds the id of a request that could not be decoded as a whole.
func requestID(req *request, line []byte) string {
	if req.ID != "" {
		return req.ID
	}
	var envelope struct {
		ID string `json:"id"`
	}
	if err := json.Unmarshal(line, &envelope); err != nil {
		return ""
	}
	return envelope.ID
}
