package main

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	podutil "k8s.io/kubernetes/pkg/api/pod"
	"k8s.io/kubernetes/pkg/apis/core"
	_ "k8s.io/kubernetes/pkg/apis/core/install" // registers Pod and its defaults
	corevalidation "k8s.io/kubernetes/pkg/apis/core/validation"
	"k8s.io/kubernetes/pkg/apis/resource"
	_ "k8s.io/kubernetes/pkg/apis/resource/install" // registers resource.k8s.io and its defaults
	"k8s.io/kubernetes/pkg/apis/resource/validation"
	"k8s.io/kubernetes/pkg/registry/resource/deviceclass"
	"k8s.io/kubernetes/pkg/registry/resource/resourceclaim"
	"k8s.io/kubernetes/pkg/registry/resource/resourceclaimtemplate"
	"k8s.io/kubernetes/pkg/registry/resource/resourceslice"
)

// strictDecoder reads any registered version, refuses unknown and duplicate
// fields, applies defaults and converts to the internal version, as the API
// server does for a client that asks for strict field validation.
var strictDecoder = serializer.NewCodecFactory(legacyscheme.Scheme, serializer.EnableStrict).UniversalDecoder()

// adminNamespaces answers the one question that creating a claim with admin
// access asks: whether its namespace permits it. Here every namespace does.
type adminNamespaces struct {
	corev1client.NamespaceInterface
}

func (adminNamespaces) Get(_ context.Context, name string, _ metav1.GetOptions) (*corev1.Namespace, error) {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name:   name,
		Labels: map[string]string{resourcev1.DRAAdminNamespaceLabelKey: "true"},
	}}, nil
}

// validateAnswer has one "field: message" for each complaint of the API server.
type validateAnswer struct {
	ID     string   `json:"id"`
	Errors []string `json:"errors"`
}

// validate asks what the API server would say to creating the object, or, for
// the kind ResourceClaimStatus, to writing the status of a claim.
func (j *judge) validate(req *request) (*validateAnswer, error) {
	answer := &validateAnswer{ID: req.ID, Errors: []string{}}
	kind, err := kindOf(req.Kind)
	if err != nil {
		return nil, err
	}
	object, actual, err := strictDecoder.Decode(req.Object, &kind, nil)
	if err != nil {
		answer.Errors = append(answer.Errors, err.Error())
		return answer, nil
	}
	if actual.Kind != kind.Kind {
		return nil, fmt.Errorf("object: is a %s, expected a %s as kind says", actual.Kind, kind.Kind)
	}
	if req.Kind == "ResourceClaimStatus" {
		answer.Errors = append(answer.Errors, statusErrors(object.(*resource.ResourceClaim))...)
		return answer, nil
	}
	ctx := requestContext(*actual, object)
	if err := create(ctx, object); err != nil {
		answer.Errors = append(answer.Errors, causes(err)...)
	}
	return answer, nil
}

// kindOf maps the kind of a request to the group and version that an object
// without its own is taken for.
func kindOf(kind string) (schema.GroupVersionKind, error) {
	switch kind {
	case "ResourceSlice", "ResourceClaim", "ResourceClaimTemplate", "DeviceClass":
		return resourcev1.SchemeGroupVersion.WithKind(kind), nil
	case "ResourceClaimStatus":
		return resourcev1.SchemeGroupVersion.WithKind("ResourceClaim"), nil
	case "Pod":
		return corev1.SchemeGroupVersion.WithKind(kind), nil
	default:
		return schema.GroupVersionKind{}, fmt.Errorf("kind: %q is unknown, expected ResourceSlice, ResourceClaim, "+
			"ResourceClaimStatus, ResourceClaimTemplate, DeviceClass or Pod", kind)
	}
}

// create runs the checks that come before storing a new object.
func create(ctx context.Context, object runtime.Object) error {
	metadata, err := meta.Accessor(object)
	if err != nil {
		return fmt.Errorf("metadata: %w", err)
	}
	rest.FillObjectMetaSystemFields(metadata)
	var strategy rest.RESTCreateStrategy
	switch object := object.(type) {
	case *resource.ResourceSlice:
		strategy = resourceslice.Strategy
	case *resource.DeviceClass:
		strategy = deviceclass.Strategy
	case *resource.ResourceClaim:
		strategy = resourceclaim.NewStrategy(adminNamespaces{}, nil)
	case *resource.ResourceClaimTemplate:
		strategy = resourceclaimtemplate.NewStrategy(adminNamespaces{})
	case *core.Pod:
		options := podutil.GetValidationOptionsFromPodSpecAndMeta(&object.Spec, nil, &object.ObjectMeta, nil)
		options.ResourceIsPod = true
		return corevalidation.ValidatePodCreate(object, options).ToAggregate()
	default:
		return fmt.Errorf("object: %T has no create strategy here", object)
	}
	if metadata.GetGenerateName() != "" && metadata.GetName() == "" {
		metadata.SetName(strategy.GenerateName(metadata.GetGenerateName()))
	}
	return rest.BeforeCreate(strategy, ctx, object)
}

// statusErrors checks an allocation that is written to a claim without one.
func statusErrors(claim *resource.ResourceClaim) []string {
	// Updates need to name the version that they replace.
	claim.ResourceVersion = "1"
	before := claim.DeepCopy()
	before.Status = resource.ResourceClaimStatus{}
	complaints := []string{}
	for _, complaint := range validation.ValidateResourceClaimStatusUpdate(claim, before) {
		complaints = append(complaints, complaint.Error())
	}
	return complaints
}

// requestContext describes a create request for the object; one that names no
// namespace is meant for "default".
func requestContext(kind schema.GroupVersionKind, object runtime.Object) context.Context {
	info := &genericapirequest.RequestInfo{
		IsResourceRequest: true,
		Verb:              "create",
		APIGroup:          kind.Group,
		APIVersion:        kind.Version,
	}
	namespace := metav1.NamespaceNone
	switch object := object.(type) {
	case *resource.ResourceClaim:
		namespace = defaultNamespace(&object.ObjectMeta)
	case *resource.ResourceClaimTemplate:
		namespace = defaultNamespace(&object.ObjectMeta)
	case *core.Pod:
		namespace = defaultNamespace(&object.ObjectMeta)
	}
	info.Namespace = namespace
	ctx := genericapirequest.WithRequestInfo(context.Background(), info)
	return genericapirequest.WithNamespace(ctx, namespace)
}

// defaultNamespace is the namespace of an object, set first where it is missing.
func defaultNamespace(metadata *metav1.ObjectMeta) string {
	if metadata.Namespace == "" {
		metadata.Namespace = metav1.NamespaceDefault
	}
	return metadata.Namespace
}

// causes lists the single complaints of a refusal.
func causes(err error) []string {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Details == nil || len(status.Status().Details.Causes) == 0 {
		return []string{err.Error()}
	}
	var texts []string
	for _, cause := range status.Status().Details.Causes {
		texts = append(texts, fmt.Sprintf("%s: %s", cause.Field, cause.Message))
	}
	return texts
}
