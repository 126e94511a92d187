package main

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/resource"
)

// quantityAnswer is how upstream reads, prints and combines quantities.
type quantityAnswer struct {
	ID        string  `json:"id"`
	Error     *string `json:"error"`
	Canonical string  `json:"canonical,omitempty"`
	// Value is in whole units, rounded up.
	Value int64 `json:"value"`
	// Compared is the order of text and with: -1, 0 or 1.
	Compared   *int   `json:"compared,omitempty"`
	Sum        string `json:"sum,omitempty"`
	Difference string `json:"difference,omitempty"`
}

func (j *judge) quantity(req *request) (*quantityAnswer, error) {
	answer := &quantityAnswer{ID: req.ID}
	text, err := resource.ParseQuantity(req.Text)
	if err != nil {
		return answer.refuse("text", err), nil
	}
	// String would repeat the text as it was read.
	number, suffix := text.CanonicalizeBytes(nil)
	answer.Canonical, answer.Value = string(number)+string(suffix), text.Value()
	if req.With == nil {
		return answer, nil
	}
	with, err := resource.ParseQuantity(*req.With)
	if err != nil {
		return answer.refuse("with", err), nil
	}
	compared := text.Cmp(with)
	sum, difference := text.DeepCopy(), text.DeepCopy()
	sum.Add(with)
	difference.Sub(with)
	answer.Compared, answer.Sum, answer.Difference = &compared, sum.String(), difference.String()
	return answer, nil
}

// refuse is the answer when one of the texts is no quantity.
func (a *quantityAnswer) refuse(field string, err error) *quantityAnswer {
	text := fmt.Sprintf("%s: %v", field, err)
	return &quantityAnswer{ID: a.ID, Error: &text}
}
