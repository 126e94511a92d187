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
