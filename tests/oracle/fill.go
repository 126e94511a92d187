package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
)

// placement is one decision of a fill, given when details are asked for.
type placement struct {
	Claim      int                          `json:"claim"`
	Node       string                       `json:"node"`
	Allocation *resourcev1.AllocationResult `json:"allocation"`
}

// milliseconds is the distribution of the time that one Pod took.
type milliseconds struct {
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P99  float64 `json:"p99"`
	Max  float64 `json:"max"`
}

// fillAnswer sums up a fill.
type fillAnswer struct {
	ID        string `json:"id"`
	Placed    int    `json:"placed"`
	Decisions int    `json:"decisions"`
	// Seconds is the wall time of all decisions together.
	Seconds            float64      `json:"seconds"`
	MillisecondsPerPod milliseconds `json:"millisecondsPerPod"`
	// NodesTried counts calls of Allocate over all Pods.
	NodesTried int `json:"nodesTried"`
	// Refused has the index of every claim that was not placed.
	Refused []int `json:"refused"`
	// Errors has the first error text of each refused claim that had one.
	Errors      map[int]string `json:"errors,omitempty"`
	Allocations []placement    `json:"allocations,omitempty"`
}

// filler places claims one after another, each as the only claim of a Pod of
// its own, the way scheduling cycles follow each other.
type filler struct {
	req       *request
	features  structured.Features
	selectors *cel.Cache
	held      *ledger
	answer    *fillAnswer
	times     []time.Duration
}

func (j *judge) newFiller(req *request) (*filler, error) {
	if len(req.Claims) == 0 {
		return nil, errors.New("claims: none given, expected at least one to place")
	}
	f := &filler{
		req:       req,
		features:  req.Features.allocator(),
		selectors: cache(j.schedulerCaches, schedulerCacheSize, req.Features.selectors()),
		answer:    &fillAnswer{ID: req.ID, Refused: []int{}, Errors: map[int]string{}},
	}
	f.held = newLedger(f.features)
	for _, claim := range req.Allocated {
		f.held.commit(claim.Status.Allocation)
	}
	return f, nil
}

// place runs one scheduling cycle over the nodes, stopping at the first that
// fits or, with every set, trying all of them and taking the first. It returns
// how many nodes were tried.
func (f *filler) place(index int, nodes []*corev1.Node, every bool) int {
	claim := f.req.Claims[index]
	ctx := context.Background()
	begin := time.Now()
	upstream, err := structured.NewAllocator(ctx, f.features, f.held.snapshot(),
		classLister{f.req.Classes}, f.req.Slices, f.selectors)
	if err != nil {
		f.record(index, begin, "", nil, err)
		return 0
	}
	var chosen *resourcev1.AllocationResult
	var onNode string
	var firstErr error
	tried := 0
	for _, node := range nodes {
		tried++
		allocations, kind, err := tryNode(ctx, upstream, node, []*resourcev1.ResourceClaim{claim}, f.req.timeout())
		if err != nil && firstErr == nil {
			firstErr = err
		}
		if err != nil && kind != errorNode {
			break
		}
		if allocations != nil && chosen == nil {
			chosen, onNode = &allocations[0], node.Name
		}
		if chosen != nil && !every {
			break
		}
	}
	f.record(index, begin, onNode, chosen, firstErr)
	f.answer.NodesTried += tried
	return tried
}

// record commits a decision and stops its clock.
func (f *filler) record(index int, begin time.Time, node string, chosen *resourcev1.AllocationResult, err error) {
	f.held.commit(chosen)
	f.times = append(f.times, time.Since(begin))
	f.answer.Decisions++
	if chosen == nil {
		f.answer.Refused = append(f.answer.Refused, index)
		if err != nil {
			f.answer.Errors[index] = err.Error()
		}
		return
	}
	f.answer.Placed++
	if f.req.Detail {
		f.answer.Allocations = append(f.answer.Allocations, placement{index, node, chosen})
	}
}

// finish closes the account of the times.
func (f *filler) finish() *fillAnswer {
	var total time.Duration
	for _, t := range f.times {
		total += t
	}
	slices.Sort(f.times)
	f.answer.Seconds = total.Seconds()
	f.answer.MillisecondsPerPod = milliseconds{
		Mean: inMilliseconds(total) / float64(len(f.times)),
		P50:  inMilliseconds(percentile(f.times, 50)),
		P99:  inMilliseconds(percentile(f.times, 99)),
		Max:  inMilliseconds(f.times[len(f.times)-1]),
	}
	return f.answer
}

// percentile picks by the nearest-rank rule from a sorted, non-empty list.
func percentile(sorted []time.Duration, percent float64) time.Duration {
	rank := int(math.Ceil(percent / 100 * float64(len(sorted))))
	return sorted[max(rank, 1)-1]
}

func inMilliseconds(d time.Duration) float64 {
	return float64(d) / float64(time.Millisecond)
}

// fill places the claims one after another on one node.
func (j *judge) fill(req *request) (*fillAnswer, error) {
	if req.Node == nil {
		return nil, errors.New("node: missing, expected a v1.Node")
	}
	f, err := j.newFiller(req)
	if err != nil {
		return nil, err
	}
	for i := range req.Claims {
		f.place(i, []*corev1.Node{req.Node}, false)
	}
	return f.finish(), nil
}

// clusterFill places the claims one after another on a cluster: a new
// allocator for each over all slices, then up to triesPerPod nodes.
func (j *judge) clusterFill(req *request) (*fillAnswer, error) {
	if len(req.Nodes) == 0 {
		return nil, errors.New("nodes: missing, expected at least one v1.Node")
	}
	tries := min(req.TriesPerPod, len(req.Nodes))
	if tries <= 0 {
		tries = min(100, len(req.Nodes))
	}
	every, err := choice("mode", req.Mode, "firstFeasible", "filterAll")
	if err != nil {
		return nil, err
	}
	packed, err := choice("start", req.Start, "rotate", "first")
	if err != nil {
		return nil, err
	}
	f, err := j.newFiller(req)
	if err != nil {
		return nil, err
	}
	// Doubling the list makes every rotation a plain window of it.
	ring := slices.Concat(req.Nodes, req.Nodes)
	next := 0
	for i := range req.Claims {
		tried := f.place(i, ring[next:next+tries], every)
		if !packed {
			next = (next + tried) % len(req.Nodes)
		}
	}
	return f.finish(), nil
}

// choice reads an option with two values; it is true for the second, and the
// first is the default.
func choice(field, value, first, second string) (bool, error) {
	switch value {
	case "", first:
		return false, nil
	case second:
		return true, nil
	default:
		return false, fmt.Errorf("%s: %q is unknown, expected %s or %s", field, value, first, second)
	}
}
