package main

import (
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/sets"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
	kubefeatures "k8s.io/kubernetes/pkg/features"
)

const (
	// schedulerCacheSize is the number of compiled selectors that the
	// scheduler keeps. The timed operations use it, so that they pay for
	// compiling what the scheduler pays for.
	schedulerCacheSize = 10
	// caseCacheSize serves single cases, where only the verdict counts.
	caseCacheSize = 4096
)

// judge is the state that outlives a request: compiled selectors.
type judge struct {
	caseCaches      map[cel.Features]*cel.Cache
	schedulerCaches map[cel.Features]*cel.Cache
	compiled        map[compiledKey]cel.CompilationResult
}

func newJudge() *judge {
	return &judge{
		caseCaches:      make(map[cel.Features]*cel.Cache),
		schedulerCaches: make(map[cel.Features]*cel.Cache),
		compiled:        make(map[compiledKey]cel.CompilationResult),
	}
}

// cache returns the cache of that size class for the features, made once.
func cache(caches map[cel.Features]*cel.Cache, size int, features cel.Features) *cel.Cache {
	if caches[features] == nil {
		caches[features] = cel.NewCache(size, features)
	}
	return caches[features]
}

// featureOverrides switches single features of the allocator. What is not
// named is as in a scheduler with its default gates.
type featureOverrides struct {
	AdminAccess            *bool `json:"adminAccess,omitempty"`
	PrioritizedList        *bool `json:"prioritizedList,omitempty"`
	PartitionableDevices   *bool `json:"partitionableDevices,omitempty"`
	ConsumableCapacity     *bool `json:"consumableCapacity,omitempty"`
	DeviceTaints           *bool `json:"deviceTaints,omitempty"`
	DeviceBindingAndStatus *bool `json:"deviceBindingAndStatus,omitempty"`
	ListTypeAttributes     *bool `json:"listTypeAttributes,omitempty"`
}

// gate is an override, or else the default of the named feature gates, all of
// which have to be on.
func gate(override *bool, gates ...featuregate.Feature) bool {
	if override != nil {
		return *override
	}
	for _, name := range gates {
		if !utilfeature.DefaultFeatureGate.Enabled(name) {
			return false
		}
	}
	return true
}

// allocator is the feature set that the scheduler's plugin would pass on. The
// plugin never asks for list type attributes; only an override does.
func (o featureOverrides) allocator() structured.Features {
	return structured.Features{
		AdminAccess:          gate(o.AdminAccess, kubefeatures.DRAAdminAccess),
		PrioritizedList:      gate(o.PrioritizedList, kubefeatures.DRAPrioritizedList),
		PartitionableDevices: gate(o.PartitionableDevices, kubefeatures.DRAPartitionableDevices),
		ConsumableCapacity:   gate(o.ConsumableCapacity, kubefeatures.DRAConsumableCapacity),
		DeviceTaints:         gate(o.DeviceTaints, kubefeatures.DRADeviceTaints),
		DeviceBindingAndStatus: gate(o.DeviceBindingAndStatus,
			kubefeatures.DRADeviceBindingConditions, kubefeatures.DRAResourceClaimDeviceStatus),
		ListTypeAttributes: o.ListTypeAttributes != nil && *o.ListTypeAttributes,
	}
}

// selectors is the matching feature set of the CEL environment.
func (o featureOverrides) selectors() cel.Features {
	return cel.Features{
		EnableConsumableCapacity: gate(o.ConsumableCapacity, kubefeatures.DRAConsumableCapacity),
		EnableListTypeAttributes: gate(o.ListTypeAttributes, kubefeatures.DRAListTypeAttributes),
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

// ledger is what allocated claims hold, kept up to date claim by claim as the
// scheduler's informers do, and copied for every Pod as its plugin does.
type ledger struct {
	consumable bool
	state      structured.AllocatedState
}

func newLedger(features structured.Features) *ledger {
	return &ledger{
		consumable: features.ConsumableCapacity,
		state: structured.AllocatedState{
			AllocatedDevices:         sets.New[structured.DeviceID](),
			AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
			AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
		},
	}
}

// commit records an allocation. A result with admin access holds nothing;
// without consumable capacity a share holds its whole device.
func (l *ledger) commit(allocation *resourcev1.AllocationResult) {
	if allocation == nil {
		return
	}
	for i := range allocation.Devices.Results {
		result := &allocation.Devices.Results[i]
		if result.AdminAccess != nil && *result.AdminAccess {
			continue
		}
		device := structured.MakeDeviceID(result.Driver, result.Pool, result.Device)
		if !l.consumable || result.ShareID == nil {
			l.state.AllocatedDevices.Insert(device)
			continue
		}
		l.state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(device, result.ShareID))
		if result.ConsumedCapacity != nil {
			l.state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(device, result.ConsumedCapacity))
		}
	}
}

// snapshot is the copy that one scheduling cycle works on.
func (l *ledger) snapshot() structured.AllocatedState {
	return structured.AllocatedState{
		AllocatedDevices:         l.state.AllocatedDevices.Clone(),
		AllocatedSharedDeviceIDs: l.state.AllocatedSharedDeviceIDs.Clone(),
		AggregatedCapacity:       l.state.AggregatedCapacity.Clone(),
	}
}
