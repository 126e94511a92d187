package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	resourcev1 "k8s.io/api/resource/v1"
)

const (
	node      = `{"metadata":{"name":"n1"}}`
	class     = `{"metadata":{"name":"gpu"},"spec":{"selectors":[{"cel":{"expression":"device.driver == 'gpu.example'"}}]}}`
	sliceHead = `"driver":"gpu.example","pool":{"name":"p","generation":1,"resourceSliceCount":%d},"nodeName":"n1"`
)

// slice renders a slice of the one test pool; rest is the tail of its spec.
func slice(name string, count int, rest string) string {
	return fmt.Sprintf(`{"metadata":{"name":%q},"spec":{`+sliceHead+`,%s}}`, name, count, rest)
}

// exactly renders a claim with one request; rest is the tail of its "exactly".
func exactly(name, rest string) string {
	return fmt.Sprintf(`{"metadata":{"name":%q,"namespace":"default"},"spec":{"devices":{"requests":[`+
		`{"name":"r","exactly":{"deviceClassName":"gpu"%s}}]}}}`, name, rest)
}

// ask sends request lines through the filter and decodes the answers.
func ask[A any](t *testing.T, lines ...string) []A {
	t.Helper()
	var out bytes.Buffer
	if err := serve(newJudge(), strings.NewReader(strings.Join(lines, "\n")), &out); err != nil {
		t.Fatal(err)
	}
	var answers []A
	for line := range strings.SplitSeq(strings.TrimSpace(out.String()), "\n") {
		var fatal fatalAnswer
		if err := json.Unmarshal([]byte(line), &fatal); err != nil {
			t.Fatalf("answer is not JSON: %v\n%s", err, line)
		}
		var answer A
		if _, wanted := any(answer).(fatalAnswer); fatal.Fatal != "" && !wanted {
			t.Fatalf("fatal: %s", fatal.Fatal)
		}
		if err := json.Unmarshal([]byte(line), &answer); err != nil {
			t.Fatalf("answer does not decode: %v\n%s", err, line)
		}
		answers = append(answers, answer)
	}
	if len(answers) != len(lines) {
		t.Fatalf("%d answers to %d requests", len(answers), len(lines))
	}
	return answers
}

// allocateLine renders an allocate request.
func allocateLine(slices, claims, allocated string) string {
	return fmt.Sprintf(`{"id":"a","op":"allocate","node":%s,"slices":[%s],"classes":[%s],"claims":[%s],"allocated":[%s]}`,
		node, slices, class, claims, allocated)
}

func results(t *testing.T, answer allocateAnswer) []resourcev1.DeviceRequestAllocationResult {
	t.Helper()
	if !answer.Placed {
		t.Fatalf("not placed: %q", answer.Error)
	}
	var all []resourcev1.DeviceRequestAllocationResult
	for i := range answer.Allocations {
		all = append(all, answer.Allocations[i].Devices.Results...)
	}
	return all
}

func TestDefaultGatesSelectEveryFeatureOf136(t *testing.T) {
	features := featureOverrides{}.allocator()
	if got := features.Set().Len(); got != 6 || features.ListTypeAttributes {
		t.Errorf("features %+v, expected all but list type attributes", features)
	}
	if selectors := (featureOverrides{}).selectors(); !selectors.EnableConsumableCapacity || selectors.EnableListTypeAttributes {
		t.Errorf("selector features %+v, expected consumable capacity alone", selectors)
	}
}

// shared is a card of 40Gi in steps of 1Gi that takes all of its counters.
const shared = `{"name":"card","allowMultipleAllocations":true,
	"capacity":{"memory":{"value":"40Gi","requestPolicy":{"default":"40Gi","validRange":{"min":"1Gi","step":"1Gi"}}}},
	"consumesCounters":[{"counterSet":"set","counters":{"memory":{"value":"4"}}}]}`

func countedSlices() string {
	quarter := `{"name":"quarter","consumesCounters":[{"counterSet":"set","counters":{"memory":{"value":"1"}}}]}`
	return slice("a-counters", 2, `"sharedCounters":[{"name":"set","counters":{"memory":{"value":"4"}}}]`) + "," +
		slice("b-devices", 2, `"devices":[`+compact(shared)+`,`+quarter+`]`)
}

// compact puts a readable literal on one line.
func compact(text string) string {
	return strings.Join(strings.Fields(text), " ")
}

func TestShareIsRoundedUpToTheStepAndHoldsTheCounters(t *testing.T) {
	share := exactly("c1", `,"capacity":{"requests":{"memory":"10500Mi"}}`)
	first := ask[allocateAnswer](t, allocateLine(countedSlices(), share, ""))[0]
	got := results(t, first)[0]
	consumed := got.ConsumedCapacity["memory"]
	if got.Device != "card" || got.ShareID == nil || consumed.String() != "11Gi" {
		t.Fatalf("got %+v, expected a share of 11Gi of the card", got)
	}

	status, err := json.Marshal(first.Allocations[0])
	if err != nil {
		t.Fatal(err)
	}
	held := strings.TrimSuffix(share, "}") + `,"status":{"allocation":` + string(status) + `}}`
	fits := exactly("c2", `,"capacity":{"requests":{"memory":"29Gi"}}`)
	tooMuch := exactly("c3", `,"capacity":{"requests":{"memory":"30Gi"}}`)
	quarter := exactly("c4", `,"selectors":[{"cel":{"expression":"!device.allowMultipleAllocations"}}]`)
	answers := ask[allocateAnswer](t,
		allocateLine(countedSlices(), fits, held),
		allocateLine(countedSlices(), tooMuch, held),
		allocateLine(countedSlices(), quarter, held),
		allocateLine(countedSlices(), quarter, ""))
	for i, expected := range []bool{true, false, false, true} {
		if answers[i].Placed != expected || answers[i].Error != "" {
			t.Errorf("case %d: placed %v (%q), expected %v", i, answers[i].Placed, answers[i].Error, expected)
		}
	}
}

func TestFirstAvailableFallsBackToTheSecondAlternative(t *testing.T) {
	slices := slice("s", 1, `"devices":[{"name":"small","attributes":{"size":{"int":1}}}]`)
	claim := `{"metadata":{"name":"c","namespace":"default"},"spec":{"devices":{"requests":[{"name":"r","firstAvailable":[` +
		`{"name":"big","deviceClassName":"gpu","selectors":[{"cel":{"expression":"device.attributes['gpu.example'].size > 1"}}]},` +
		`{"name":"any","deviceClassName":"gpu"}]}]}}}`
	got := results(t, ask[allocateAnswer](t, allocateLine(slices, claim, ""))[0])
	if len(got) != 1 || got[0].Request != "r/any" || got[0].Device != "small" {
		t.Errorf("got %+v, expected r/any on small", got)
	}
}

func TestTaintRefusesUnlessTolerated(t *testing.T) {
	slices := slice("s", 1, `"devices":[{"name":"d","taints":[{"key":"broken","effect":"NoSchedule"}]}]`)
	plain, tolerant := exactly("c", ""), exactly("c", `,"tolerations":[{"key":"broken"}]`)
	off := strings.Replace(allocateLine(slices, plain, ""), `"node"`, `"features":{"deviceTaints":false},"node"`, 1)
	answers := ask[allocateAnswer](t, allocateLine(slices, plain, ""), allocateLine(slices, tolerant, ""), off)
	if answers[0].Placed || !answers[1].Placed || !answers[2].Placed {
		t.Errorf("placed %v %v %v, expected false true true", answers[0].Placed, answers[1].Placed, answers[2].Placed)
	}
}

func TestSelectorErrorAbortsAndAnInvalidPoolOnlyLosesTheNode(t *testing.T) {
	device := slice("s", 1, `"devices":[{"name":"d"}]`)
	twice := slice("s", 1, `"devices":[{"name":"d","taints":[{"key":"k","effect":"NoSchedule"}]},{"name":"d"}]`)
	missing := exactly("c", `,"selectors":[{"cel":{"expression":"device.attributes['gpu.example'].none == 1"}}]`)
	answers := ask[allocateAnswer](t, allocateLine(device, missing, ""), allocateLine(twice, exactly("c", ""), ""))
	if answers[0].ErrorKind != errorAbort || !strings.Contains(answers[0].Error, "no such key: none") {
		t.Errorf("got %+v, expected an abort that names the key", answers[0])
	}
	if answers[1].ErrorKind != errorNode {
		t.Errorf("got %+v, expected an error of the node", answers[1])
	}
}

func TestSecondNodeIsTaken(t *testing.T) {
	line := strings.Replace(allocateLine(slice("s", 1, `"devices":[{"name":"d"}]`), exactly("c", ""), ""),
		`"node":`+node, `"nodes":[{"metadata":{"name":"n0"}},`+node+`]`, 1)
	if answer := ask[allocateAnswer](t, line)[0]; !answer.Placed || answer.Node != "n1" {
		t.Errorf("got %+v, expected n1", answer)
	}
}

func TestSelectorVerdicts(t *testing.T) {
	line := func(expression string) string {
		return fmt.Sprintf(`{"id":"e","op":"cel","driver":"d.x","expression":%q,"device":{"name":"x",`+
			`"attributes":{"a":{"int":3},"v":{"version":"1.2.3"}},"capacity":{"memory":{"value":"40Gi"}}}}`, expression)
	}
	answers := ask[celAnswer](t,
		line(`device.attributes["d.x"].a == 3`),
		line(`device.capacity["d.x"].memory.compareTo(quantity("41Gi")) > 0`),
		line(`device.attributes["d.x"].v.isGreaterThan(semver("1.2.0"))`),
		line(`device.attributes["d.x"].none == 3`),
		line(`device.attributes["d.x"].a ==`),
		line(`device.attributes["d.x"].a`))
	for i, expected := range []bool{true, false, true, false, false, false} {
		if answers[i].Result != expected {
			t.Errorf("expression %d: %v, expected %v", i, answers[i].Result, expected)
		}
	}
	if answers[0].Cost == 0 || answers[0].CompileError != nil || answers[0].RuntimeError != nil {
		t.Errorf("got %+v, expected a cost and no errors", answers[0])
	}
	if answers[3].RuntimeError == nil || answers[4].CompileError == nil || answers[5].RuntimeError == nil {
		t.Errorf("errors missing in %+v", answers[3:])
	}
}

func TestValidationNamesTheField(t *testing.T) {
	line := func(kind, object string) string {
		return fmt.Sprintf(`{"id":"v","op":"validate","kind":%q,"object":%s}`, kind, object)
	}
	long := strings.Repeat("x", 65)
	cases := []struct{ line, expected string }{
		{line("ResourceSlice", slice("s", 1, `"devices":[{"name":"d"}]`)), ""},
		{line("ResourceSlice", slice("s", 1, `"devices":[{"name":"d","attributes":{"a":{"string":"`+long+`"}}}]`)),
			"spec.devices[0].attributes[a].string: Too long"},
		{line("ResourceSlice", slice("s", 1, `"devices":[{"name":"d","color":1}]`)), `unknown field "spec.devices[0].color"`},
		{line("ResourceSlice", slice("s", 1, `"devices":[],"sharedCounters":[]`)), "only one of"},
		{line("ResourceClaim", exactly("c", `,"adminAccess":true`)), ""},
		{line("ResourceClaim", exactly("c", `,"count":-1`)), "spec.devices.requests[0].exactly.count"},
		{line("ResourceClaimTemplate", `{"metadata":{"generateName":"t-"},"spec":`+
			`{"spec":{"devices":{"requests":[{"name":"r"}]}}}}`), "spec.spec.devices.requests[0]"},
		{line("DeviceClass", class), ""},
		{line("DeviceClass", `{"metadata":{"name":"c"},"spec":{"selectors":[{"cel":{"expression":"1 +"}}]}}`),
			"spec.selectors[0].cel.expression"},
		{line("Pod", `{"metadata":{"name":"p"},"spec":{"containers":[]}}`), "spec.containers"},
	}
	for _, c := range cases {
		got := ask[validateAnswer](t, c.line)[0].Errors
		switch {
		case c.expected == "" && len(got) > 0:
			t.Errorf("%s\ngot %q, expected no errors", c.line, got)
		case c.expected != "" && !strings.Contains(strings.Join(got, "\n"), c.expected):
			t.Errorf("%s\ngot %q, expected %q", c.line, got, c.expected)
		}
	}
}

func TestAllocationIsAValidStatus(t *testing.T) {
	share := exactly("c1", `,"capacity":{"requests":{"memory":"2Gi"}}`)
	answer := ask[allocateAnswer](t, allocateLine(countedSlices(), share, ""))[0]
	status, err := json.Marshal(answer.Allocations[0])
	if err != nil {
		t.Fatal(err)
	}
	line := func(allocation string) string {
		return `{"id":"s","op":"validate","kind":"ResourceClaimStatus","object":` +
			strings.TrimSuffix(share, "}") + `,"status":{"allocation":` + allocation + `}}}`
	}
	wrong := strings.Replace(string(status), `"request":"r"`, `"request":"other"`, 1)
	answers := ask[validateAnswer](t, line(string(status)), line(wrong))
	if len(answers[0].Errors) != 0 || len(answers[1].Errors) == 0 {
		t.Errorf("got %q and %q, expected none and one", answers[0].Errors, answers[1].Errors)
	}
}

func TestFillCommitsEachClaimBeforeTheNext(t *testing.T) {
	claims := make([]string, 5)
	for i := range claims {
		claims[i] = exactly(fmt.Sprintf("c%d", i), `,"capacity":{"requests":{"memory":"10Gi"}}`)
	}
	line := fmt.Sprintf(`{"id":"f","op":"fill","detail":true,"node":%s,"slices":[%s],"classes":[%s],"claims":[%s]}`,
		node, countedSlices(), class, strings.Join(claims, ","))
	got := ask[fillAnswer](t, line)[0]
	if got.Placed != 4 || got.Decisions != 5 || len(got.Refused) != 1 || got.Refused[0] != 4 || len(got.Allocations) != 4 {
		t.Errorf("got %+v, expected four quarters placed and the fifth refused", got)
	}
	if got.Seconds <= 0 || got.MillisecondsPerPod.Max < got.MillisecondsPerPod.P50 {
		t.Errorf("times make no sense: %+v", got)
	}
}

func TestClusterFillRotatesOverTheNodes(t *testing.T) {
	nodes, slices, claims := make([]string, 3), make([]string, 3), make([]string, 4)
	for i := range nodes {
		nodes[i] = fmt.Sprintf(`{"metadata":{"name":"n%d"}}`, i)
		slices[i] = fmt.Sprintf(`{"metadata":{"name":"s%d"},"spec":{"driver":"gpu.example","nodeName":"n%d",`+
			`"pool":{"name":"p%d","generation":1,"resourceSliceCount":1},"devices":[{"name":"d"}]}}`, i, i, i)
	}
	for i := range claims {
		claims[i] = exactly(fmt.Sprintf("c%d", i), "")
	}
	line := func(rest string) string {
		return fmt.Sprintf(`{"id":"c","op":"cluster-fill","detail":true,"nodes":[%s],"slices":[%s],"classes":[%s],"claims":[%s]%s}`,
			strings.Join(nodes, ","), strings.Join(slices, ","), class, strings.Join(claims, ","), rest)
	}
	answers := ask[fillAnswer](t, line(""), line(`,"mode":"filterAll"`), line(`,"triesPerPod":1,"start":"first"`))
	for i, expected := range []struct{ placed, tried int }{{3, 6}, {3, 12}, {1, 4}} {
		if answers[i].Placed != expected.placed || answers[i].NodesTried != expected.tried {
			t.Errorf("case %d: placed %d after %d tries, expected %+v", i, answers[i].Placed, answers[i].NodesTried, expected)
		}
	}
	for i, placed := range answers[0].Allocations {
		if expected := fmt.Sprintf("n%d", i); placed.Node != expected {
			t.Errorf("claim %d is on %s, expected %s", i, placed.Node, expected)
		}
	}
}

func TestQuantitiesAreReadPrintedAndCompared(t *testing.T) {
	answers := ask[quantityAnswer](t,
		`{"id":"q","op":"quantity","text":"1536Mi","with":"1Gi"}`,
		`{"id":"q","op":"quantity","text":"+0.50"}`,
		`{"id":"q","op":"quantity","text":"1gb"}`,
		`{"id":"q","op":"quantity","text":"1","with":"x"}`)
	got := answers[0]
	if got.Canonical != "1536Mi" || got.Value != 1536<<20 || *got.Compared != 1 || got.Sum != "2560Mi" || got.Difference != "512Mi" {
		t.Errorf("got %+v", got)
	}
	if answers[1].Canonical != "500m" || answers[1].Value != 1 || answers[1].Compared != nil {
		t.Errorf("got %+v, expected 500m, rounded up to 1", answers[1])
	}
	if answers[2].Error == nil || answers[3].Error == nil {
		t.Errorf("got %+v, expected errors", answers[2:])
	}
}

func TestBadLinesAreAnsweredAndTheNextOneStillWorks(t *testing.T) {
	answers := ask[fatalAnswer](t,
		`not JSON`,
		`{"id":"2","op":"guess"}`,
		`{"id":"3","op":"allocate","node":{"metadata":{"name":"n"}},"colour":1}`,
		`{"id":"4","op":"allocate","slices":7}`,
		`{"id":"5","op":"cel"}`,
		`{"id":"6","op":"validate","kind":"Secret","object":{}}`,
		`{"id":"7","op":"fill"}`,
		`{"id":"8","op":"cluster-fill","nodes":[{}],"mode":"best","claims":[{}]}`)
	for i, answer := range answers {
		if answer.Fatal == "" || (i > 0 && answer.ID != fmt.Sprint(i+1)) {
			t.Errorf("line %d: got %+v, expected a fatal answer with its id", i+1, answer)
		}
	}
	good := ask[celAnswer](t, `{"id":"9","op":"cel","expression":"true","device":{"name":"d"}}`)[0]
	if !good.Result {
		t.Errorf("got %+v, expected true", good)
	}
}
