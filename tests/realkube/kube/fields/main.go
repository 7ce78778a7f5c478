// Prints how Go reads and writes the fields of the Kubernetes API types, one message a line:
// [protobuf number, JSON name, shape, type, pointer, shown when empty]. The OpenAPI document tells
// what must be there, not what is written out when nobody set it; that is in the Go tags.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path"
	"reflect"
	"sort"
	"strconv"
	"strings"

	admissionregistration "k8s.io/api/admissionregistration/v1"
	apps "k8s.io/api/apps/v1"
	authentication "k8s.io/api/authentication/v1"
	authorization "k8s.io/api/authorization/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscaling "k8s.io/api/autoscaling/v2"
	batch "k8s.io/api/batch/v1"
	certificates "k8s.io/api/certificates/v1"
	coordination "k8s.io/api/coordination/v1"
	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	events "k8s.io/api/events/v1"
	flowcontrol "k8s.io/api/flowcontrol/v1"
	networking "k8s.io/api/networking/v1"
	node "k8s.io/api/node/v1"
	policy "k8s.io/api/policy/v1"
	rbac "k8s.io/api/rbac/v1"
	resource "k8s.io/api/resource/v1"
	taintrules "k8s.io/api/resource/v1beta2"
	scheduling "k8s.io/api/scheduling/v1"
	podgroups "k8s.io/api/scheduling/v1alpha2"
	storage "k8s.io/api/storage/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apiregistration "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
)

var groups = []func(*runtime.Scheme) error{
	admissionregistration.AddToScheme, apiregistration.AddToScheme, apps.AddToScheme, authentication.AddToScheme,
	authorization.AddToScheme, autoscaling.AddToScheme, autoscalingv1.AddToScheme,
	batch.AddToScheme, certificates.AddToScheme, coordination.AddToScheme, core.AddToScheme,
	discovery.AddToScheme, events.AddToScheme, flowcontrol.AddToScheme, networking.AddToScheme,
	node.AddToScheme, policy.AddToScheme, rbac.AddToScheme, resource.AddToScheme, taintrules.AddToScheme,
	scheduling.AddToScheme, podgroups.AddToScheme, storage.AddToScheme, apiextensions.AddToScheme,
}

// Types whose JSON form is not that of their fields.
var opaque = map[string]bool{
	"Quantity": true, "QuantityValue": true, "IntOrString": true, "meta.Time": true,
	"meta.MicroTime": true, "meta.Duration": true, "meta.FieldsV1": true,
	"runtime.RawExtension": true, "apiextensions.v1.JSON": true,
}

type field struct {
	number      int
	name, shape string
	typ         string
	pointer     bool
	shown       bool
}

var messages = map[string][]field{}

func main() {
	scheme := runtime.NewScheme()
	for _, add := range groups {
		if err := add(scheme); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	for kind, typ := range scheme.AllKnownTypes() {
		if kind.Version != runtime.APIVersionInternal {
			visit(typ)
		}
	}
	visit(reflect.TypeOf(meta.Status{}))
	print()
}

func name(typ reflect.Type) string {
	pkg := typ.PkgPath()
	switch {
	case strings.HasSuffix(pkg, "/api/resource"), strings.HasSuffix(pkg, "/util/intstr"):
		return typ.Name()
	case strings.HasSuffix(pkg, "/apis/meta/v1"):
		return "meta." + typ.Name()
	case strings.HasSuffix(pkg, "/pkg/runtime"):
		return "runtime." + typ.Name()
	}
	return path.Base(path.Dir(pkg)) + "." + path.Base(pkg) + "." + typ.Name()
}

// The type of a value on the wire; structs are visited.
func valueType(typ reflect.Type) string {
	switch typ.Kind() {
	case reflect.Struct:
		visit(typ)
		return name(typ)
	case reflect.Slice:
		if typ.Elem().Kind() == reflect.Uint8 {
			return "bytes"
		}
		return name(typ) // a named list of texts, as ExtraValue
	case reflect.Float64:
		return "double"
	case reflect.Int, reflect.Int64:
		return "int64"
	}
	return typ.Kind().String()
}

func visit(typ reflect.Type) {
	known := name(typ)
	if _, seen := messages[known]; seen || opaque[known] {
		return
	}
	messages[known] = nil
	fields := []field{}
	for i := range typ.NumField() {
		fields = append(fields, read(typ.Field(i))...)
	}
	messages[known] = fields
}

func read(of reflect.StructField) []field {
	if of.Type == reflect.TypeOf(meta.TypeMeta{}) {
		return []field{{0, "kind", "opt", "string", false, false}, {0, "apiVersion", "opt", "string", false, false}}
	}
	tag, tagged := of.Tag.Lookup("json")
	parts := strings.Split(tag, ",")
	if !of.IsExported() || tag == "-" {
		return nil
	}
	found := field{name: parts[0], shape: "opt"}
	if wire := strings.Split(of.Tag.Get("protobuf"), ","); len(wire) > 1 {
		found.number, _ = strconv.Atoi(wire[1])
	}
	typ := of.Type
	if found.pointer = typ.Kind() == reflect.Pointer; found.pointer {
		typ = typ.Elem()
	}
	switch {
	case typ.Kind() == reflect.Map:
		found.shape, typ = "map", typ.Elem()
	case typ.Kind() == reflect.Slice && (typ.Name() == "" || typ.Elem().Kind() == reflect.Struct) &&
		typ.Elem().Kind() != reflect.Uint8:
		found.shape, typ = "rep", typ.Elem()
	}
	found.typ = valueType(typ)
	omitted := map[string]bool{}
	for _, option := range parts[1:] {
		omitted[option] = true
	}
	value := typ.Kind() == reflect.Struct && !found.pointer && found.shape == "opt"
	found.shown = !omitted["omitzero"] && (value || !omitted["omitempty"])
	if !tagged {
		found.name, found.shown = strings.ToLower(of.Name[:1])+of.Name[1:], false
	}
	if found.name == "" {
		found.shown = false
	}
	return []field{found}
}

func print() {
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	names := []string{}
	for known := range messages {
		names = append(names, known)
	}
	sort.Strings(names)
	for at, known := range names {
		rows := [][]any{}
		for _, each := range messages[known] {
			rows = append(rows, []any{each.number, each.name, each.shape, each.typ, bit(each.pointer), bit(each.shown)})
		}
		text, _ := json.Marshal(rows)
		separator := ",\n"
		if at == 0 {
			separator = "{\n"
		}
		fmt.Fprintf(out, "%s%q:%s", separator, known, text)
	}
	fmt.Fprint(out, "\n}\n")
}

func bit(set bool) int {
	if set {
		return 1
	}
	return 0
}
