package main

import (
	"context"
	"errors"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/structured"
)

// fillAnswer sums up a fill; the fields are those of the first judge.
type fillAnswer struct {
	ID     string `json:"id"`
	Placed int    `json:"placed"`
	// Seconds is the wall time of all decisions together.
	Seconds float64 `json:"seconds"`
	// Refused has the index of every claim that was not placed.
	Refused []int `json:"refused"`
}

// fill places the claims one after another on one node, each as the only claim
// of a Pod: the allocated state is copied, an allocator is made, asked and its
// answer kept.
func fill(req *request) (*fillAnswer, error) {
	if req.Node == nil || len(req.Claims) == 0 {
		return nil, errors.New("node, claims: missing, expected one node and at least one claim")
	}
	for _, claim := range append(req.Claims, req.Allocated...) {
		setDefaults(claim)
	}
	held, err := state(req.Allocated)
	if err != nil {
		return nil, err
	}
	filled := &fillAnswer{ID: req.ID, Refused: []int{}}
	ctx := context.Background()
	for i, claim := range req.Claims {
		begin := time.Now()
		snapshot := structured.AllocatedState{
			AllocatedDevices:         held.AllocatedDevices.Clone(),
			AllocatedSharedDeviceIDs: held.AllocatedSharedDeviceIDs.Clone(),
			AggregatedCapacity:       held.AggregatedCapacity.Clone(),
		}
		upstream, err := structured.NewAllocator(ctx, features, snapshot, classLister{req.Classes}, req.Slices, selectors)
		if err != nil {
			return nil, err
		}
		allocations, err := upstream.Allocate(ctx, req.Node, []*resourcev1.ResourceClaim{claim})
		if err != nil || len(allocations) == 0 {
			filled.Refused = append(filled.Refused, i)
		} else {
			filled.Placed++
			hold(&held, &allocations[0])
		}
		filled.Seconds += time.Since(begin).Seconds()
	}
	return filled, nil
}

// newState holds nothing.
func newState() structured.AllocatedState {
	return structured.AllocatedState{
		AllocatedDevices:         sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
	}
}

// hold adds what an allocation takes.
func hold(held *structured.AllocatedState, allocation *resourcev1.AllocationResult) {
	for _, result := range allocation.Devices.Results {
		// Administrative access holds nothing.
		if result.AdminAccess != nil && *result.AdminAccess {
			continue
		}
		device := structured.MakeDeviceID(result.Driver, result.Pool, result.Device)
		if result.ShareID == nil {
			held.AllocatedDevices.Insert(device)
			continue
		}
		held.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(device, result.ShareID))
		if result.ConsumedCapacity != nil {
			held.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(device, result.ConsumedCapacity))
		}
	}
}
