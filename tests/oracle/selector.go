package main

import (
	"context"
	"errors"

	"k8s.io/dynamic-resource-allocation/cel"
)

// celAnswer is what upstream makes of one selector on one device.
type celAnswer struct {
	ID           string  `json:"id"`
	CompileError *string `json:"compileError"`
	// Result is whether the device matches; false after any error.
	Result       bool    `json:"result"`
	RuntimeError *string `json:"runtimeError"`
	// Cost is the worst case that admission compares with its limit.
	Cost uint64 `json:"cost"`
	// ActualCost is what this evaluation took.
	ActualCost uint64 `json:"actualCost"`
}

// evaluate compiles and runs a selector as the scheduler does.
func (j *judge) evaluate(req *request) (*celAnswer, error) {
	if req.Device == nil {
		return nil, errors.New("device: missing, expected a Device of a ResourceSlice")
	}
	answer := &celAnswer{ID: req.ID}
	compiled := j.compile(req.Features.selectors(), req.Expression)
	if compiled.Error != nil {
		text := compiled.Error.Error()
		answer.CompileError = &text
		return answer, nil
	}
	answer.Cost = compiled.MaxCost
	ctx, cancel := context.WithTimeout(context.Background(), req.timeout())
	defer cancel()
	matches, details, err := compiled.DeviceMatches(ctx, cel.Device{
		Driver:                   req.Driver,
		AllowMultipleAllocations: req.Device.AllowMultipleAllocations,
		Attributes:               req.Device.Attributes,
		Capacity:                 req.Device.Capacity,
	})
	if details != nil && details.ActualCost() != nil {
		answer.ActualCost = *details.ActualCost()
	}
	if err != nil {
		text := err.Error()
		answer.RuntimeError = &text
		return answer, nil
	}
	answer.Result = matches
	return answer, nil
}

// compiledKey is one expression in one environment.
type compiledKey struct {
	features   cel.Features
	expression string
}

// compile keeps what it compiles, with its cost, because the same class is
// tried on many devices.
func (j *judge) compile(features cel.Features, expression string) cel.CompilationResult {
	key := compiledKey{features, expression}
	if known, ok := j.compiled[key]; ok {
		return known
	}
	if len(j.compiled) >= caseCacheSize {
		clear(j.compiled)
	}
	j.compiled[key] = cel.GetCompiler(features).CompileCELExpression(expression, cel.Options{})
	return j.compiled[key]
}
