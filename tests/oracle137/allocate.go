package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
)

const (
	// defaultTimeout is the scheduler's own limit for one node
	// (DynamicResourcesArgs.filterTimeout).
	defaultTimeout = 10 * time.Second
	// cacheSize is the number of compiled selectors that are kept.
	cacheSize = 4096
)

// features are those of a scheduler of 1.37 with its default gates. The range
// of fractional capacities needs a cluster without older components.
var features = structured.Features{
	AdminAccess:            true,
	PrioritizedList:        true,
	PartitionableDevices:   true,
	ConsumableCapacity:     true,
	DeviceTaints:           true,
	DeviceBindingAndStatus: true,
}

var selectors = cel.NewCache(cacheSize, cel.Features{EnableConsumableCapacity: true})

// request is the question of one allocation.
type request struct {
	ID        string                      `json:"id"`
	Op        string                      `json:"op"`
	Node      *corev1.Node                `json:"node,omitempty"`
	Nodes     []*corev1.Node              `json:"nodes,omitempty"`
	Slices    []*resourcev1.ResourceSlice `json:"slices,omitempty"`
	Classes   []*resourcev1.DeviceClass   `json:"classes,omitempty"`
	Claims    []*resourcev1.ResourceClaim `json:"claims,omitempty"`
	Allocated []*resourcev1.ResourceClaim `json:"allocated,omitempty"`
	TimeoutMS int64                       `json:"timeoutMs,omitempty"`
}

// answer is upstream's decision on one set of claims; the fields are those of
// the first judge.
type answer struct {
	ID          string                        `json:"id"`
	Placed      bool                          `json:"placed"`
	Node        string                        `json:"node,omitempty"`
	Allocations []resourcev1.AllocationResult `json:"allocations,omitempty"`
	Error       string                        `json:"error,omitempty"`
	ErrorKind   string                        `json:"errorKind,omitempty"`
}

// allocate decides all claims of a request together, as for one Pod.
func allocate(req *request) (*answer, error) {
	nodes := req.Nodes
	if req.Node != nil {
		nodes = append(nodes, req.Node)
	}
	if len(nodes) == 0 || len(req.Claims) == 0 {
		return nil, errors.New("node, claims: missing, expected at least one of both")
	}
	for _, claim := range append(req.Claims, req.Allocated...) {
		setDefaults(claim)
	}
	held, err := state(req.Allocated)
	if err != nil {
		return nil, err
	}
	limit := defaultTimeout
	if req.TimeoutMS > 0 {
		limit = time.Duration(req.TimeoutMS) * time.Millisecond
	}
	ctx := context.Background()
	result := &answer{ID: req.ID}
	upstream, err := structured.NewAllocator(ctx, features, held, classLister{req.Classes}, req.Slices, selectors)
	if err != nil {
		result.Error, result.ErrorKind = err.Error(), "abort"
		return result, nil
	}
	for _, node := range nodes {
		limited, cancel := context.WithTimeout(ctx, limit)
		allocations, err := upstream.Allocate(limited, node, req.Claims)
		cancel()
		switch {
		case err == nil && len(allocations) == len(req.Claims):
			return &answer{ID: req.ID, Placed: true, Node: node.Name, Allocations: allocations}, nil
		case err == nil:
		case errors.Is(err, context.DeadlineExceeded):
			result.Error, result.ErrorKind = err.Error(), "timeout"
			return result, nil
		case errors.Is(err, structured.ErrFailedAllocationOnNode):
			result.Error, result.ErrorKind = err.Error(), "node"
		default:
			result.Error, result.ErrorKind = err.Error(), "abort"
			return result, nil
		}
	}
	return result, nil
}

// state is what allocated claims hold.
func state(allocated []*resourcev1.ResourceClaim) (structured.AllocatedState, error) {
	held := newState()
	for i, claim := range allocated {
		if claim.Status.Allocation == nil {
			return held, fmt.Errorf("allocated[%d]: claim %q has no status.allocation", i, claim.Name)
		}
		hold(&held, claim.Status.Allocation)
	}
	return held, nil
}

// setDefaults applies the API server's defaults, because the allocator only ever
// sees objects that have been stored.
func setDefaults(claim *resourcev1.ResourceClaim) {
	for i := range claim.Spec.Devices.Requests {
		request := &claim.Spec.Devices.Requests[i]
		if exact := request.Exactly; exact != nil {
			setCount(&exact.AllocationMode, &exact.Count)
			setOperators(exact.Tolerations)
		}
		for j := range request.FirstAvailable {
			sub := &request.FirstAvailable[j]
			setCount(&sub.AllocationMode, &sub.Count)
			setOperators(sub.Tolerations)
		}
	}
}

func setCount(mode *resourcev1.DeviceAllocationMode, count *int64) {
	if *mode == "" {
		*mode = resourcev1.DeviceAllocationModeExactCount
	}
	if *mode == resourcev1.DeviceAllocationModeExactCount && *count == 0 {
		*count = 1
	}
}

func setOperators(tolerations []resourcev1.DeviceToleration) {
	for i := range tolerations {
		if tolerations[i].Operator == "" {
			tolerations[i].Operator = resourcev1.DeviceTolerationOpEqual
		}
	}
}

// classLister serves the device classes of one request by name.
type classLister struct {
	classes []*resourcev1.DeviceClass
}

func (l classLister) List() ([]*resourcev1.DeviceClass, error) {
	return l.classes, nil
}

func (l classLister) Get(name string) (*resourcev1.DeviceClass, error) {
	for _, class := range l.classes {
		if class.Name == name {
			return class, nil
		}
	}
	return nil, apierrors.NewNotFound(resourcev1.Resource("deviceclasses"), name)
}
