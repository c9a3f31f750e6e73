{{/* Selector of a part's pods: our own, or those that the gateway makes for jobs. */}}
{{- define "embermesh.podsOf" -}}
{{- if has .part (list "trainer" "server") -}}
matchLabels:
  {{- include "embermesh.jobsLabels" .root | nindent 2 }}
matchExpressions:
  - key: app.kubernetes.io/component
    operator: In
    values: {{ ternary (list "trainer") (list "sparse-ps" "dense-ps") (eq .part "trainer") | toJson }}
{{- else -}}
matchLabels:
  {{- include "embermesh.selector" . | nindent 2 }}
{{- end -}}
{{- end -}}

{{- define "embermesh.tcp" -}}
{{- range . }}
- {port: {{ . }}, protocol: TCP}
{{- end }}
{{- end -}}
