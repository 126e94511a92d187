package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/structured"
)

// Kinds of an allocation error, by what the scheduler does about it.
const (
	// errorNode: this node is out, others may still do.
	errorNode = "node"
	// errorAbort: scheduling of the Pod ends, on every node.
	errorAbort = "abort"
	// errorTimeout: the search took longer than the limit.
	errorTimeout = "timeout"
)

// allocateAnswer is upstream's decision on one set of claims.
type allocateAnswer struct {
	ID     string `json:"id"`
	Placed bool   `json:"placed"`
	// Node is the first node on which all claims fit.
	Node string `json:"node,omitempty"`
	// Allocations has one entry for each claim, in order; absent when not placed.
	Allocations []resourcev1.AllocationResult `json:"allocations,omitempty"`
	// Error is the last error met; ErrorKind says which of the kinds it is.
	Error     string `json:"error,omitempty"`
	ErrorKind string `json:"errorKind,omitempty"`
}

// allocate decides all claims of a request together, as for one Pod.
func (j *judge) allocate(req *request) (*allocateAnswer, error) {
	nodes, err := candidateNodes(req)
	if err != nil {
		return nil, err
	}
	if len(req.Claims) == 0 {
		return nil, errors.New("claims: none given, expected at least one to allocate")
	}
	held := newLedger(req.Features.allocator())
	for i, claim := range req.Allocated {
		if claim.Status.Allocation == nil {
			return nil, fmt.Errorf("allocated[%d]: claim %q has no status.allocation", i, claim.Name)
		}
		held.commit(claim.Status.Allocation)
	}
	answer := &allocateAnswer{ID: req.ID}
	ctx := context.Background()
	selectors := cache(j.caseCaches, caseCacheSize, req.Features.selectors())
	upstream, err := structured.NewAllocator(ctx, req.Features.allocator(), held.snapshot(),
		classLister{req.Classes}, req.Slices, selectors)
	if err != nil {
		answer.Error, answer.ErrorKind = err.Error(), errorAbort
		return answer, nil
	}
	for _, node := range nodes {
		allocations, kind, err := tryNode(ctx, upstream, node, req.Claims, req.timeout())
		if err != nil {
			answer.Error, answer.ErrorKind = err.Error(), kind
			if kind != errorNode {
				return answer, nil
			}
			continue
		}
		if allocations != nil {
			return &allocateAnswer{ID: req.ID, Placed: true, Node: node.Name, Allocations: allocations}, nil
		}
	}
	return answer, nil
}

// tryNode asks upstream for one node. No allocations and no error: they do not
// fit there.
func tryNode(ctx context.Context, upstream structured.Allocator, node *corev1.Node,
	claims []*resourcev1.ResourceClaim, limit time.Duration,
) ([]resourcev1.AllocationResult, string, error) {
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	allocations, err := upstream.Allocate(limited, node, claims)
	switch {
	case err == nil && len(allocations) != len(claims):
		return nil, "", nil
	case err == nil:
		return allocations, "", nil
	case errors.Is(err, context.DeadlineExceeded):
		return nil, errorTimeout, fmt.Errorf("timeout after %s: %w", limit, err)
	case errors.Is(err, structured.ErrFailedAllocationOnNode):
		return nil, errorNode, err
	default:
		return nil, errorAbort, err
	}
}

// candidateNodes are the nodes of a request in the order in which to try them.
func candidateNodes(req *request) ([]*corev1.Node, error) {
	switch {
	case req.Node != nil && len(req.Nodes) > 0:
		return nil, errors.New("node, nodes: both given, expected one of them")
	case req.Node != nil:
		return []*corev1.Node{req.Node}, nil
	case len(req.Nodes) > 0:
		return req.Nodes, nil
	default:
		return nil, errors.New("node: missing, expected a v1.Node")
	}
}
