{{- define "aliquot.labels" -}}
app.kubernetes.io/name: aliquot
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "aliquot.selector" -}}
app.kubernetes.io/name: aliquot
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- /* Another policy is another object: agents restart on it, and those of a stopped update keep the one that they read. */}}
{{- define "aliquot.policy" -}}
aliquot-policy-{{ sha256sum .Values.policy | trunc 10 }}
{{- end }}

{{- /* What a chart can see of a policy: tables, fields and layouts that do not exist, by line. The agent reads the rest. */}}
{{- define "aliquot.policy-check" -}}
{{- $fields := list "default" "evict" "rule" "slot" "recipe" "vendor" "model" "uuid" "index" "layout" "partitions" "slots"
  "default-memory" "min-memory" "max-memory" "default-cores" "name" "memory" "cores" "copies" }}
{{- $layouts := list "auto" "whole" "shared" "split" "slots" "dynamic" }}
{{- $tables := `^\[\[\s*"?(rule|slot|recipe)"?\s*\]\]\s*(#.*)?$|^\[\s*"?default"?\s*\]\s*(#.*)?$` }}
{{- /* A text of several lines could hold anything. */}}
{{- if not (regexMatch `"""|'''` .Values.policy) }}
{{- range $at, $line := splitList "\n" .Values.policy }}
{{- $line = trim $line }}
{{- $where := printf "policy: line %d: found `%s`" (add1 $at) $line }}
{{- if and (hasPrefix "[" $line) (not (regexMatch $tables $line)) }}
{{- fail (printf "%s, expected [[rule]], [[slot]], [[recipe]] or [default]; correct it" $where) }}
{{- end }}
{{- if regexMatch `^[A-Za-z_]` $line }}
{{- $field := regexFind `^[A-Za-z0-9_-]+` $line }}
{{- if not (has $field $fields) }}
{{- fail (printf "%s, expected one of the fields %s; correct it" $where (join ", " $fields)) }}
{{- end }}
{{- if not (regexMatch `^[A-Za-z0-9_-]+\s*[=.]` $line) }}
{{- fail (printf "%s, expected %s = VALUE; correct it" $where $field) }}
{{- end }}
{{- $value := regexFind `^(layout|default)\s*=\s*["'][^"']*` $line }}
{{- $layout := regexReplaceAll `^[^"']*["']` $value "" }}
{{- if and $value (not (has $layout $layouts)) }}
{{- fail (printf "%s, expected a layout: %s; correct it" $where (join ", " $layouts)) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
