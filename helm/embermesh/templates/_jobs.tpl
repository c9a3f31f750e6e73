{{/* What the gateway's target must know: gateway/kubernetes/config.py. */}}
{{- define "embermesh.jobsEnv" -}}
- {name: EMBERMESH_GATEWAY_TARGET, value: kubernetes}
- {name: EMBERMESH_KUBERNETES_NAMESPACE, value: {{ .Release.Namespace | quote }}}
- {name: EMBERMESH_KUBERNETES_INSTANCE, value: {{ .Release.Name | quote }}}
- {name: EMBERMESH_KUBERNETES_IMAGE_PS, value: {{ include "embermesh.image" (dict "root" $ "name" .Values.jobs.psImage) | quote }}}
- {name: EMBERMESH_KUBERNETES_IMAGE_TRAINER, value: {{ include "embermesh.image" (dict "root" $ "name" .Values.jobs.trainerImage) | quote }}}
- {name: EMBERMESH_KUBERNETES_IMAGE_PULL_POLICY, value: {{ .Values.image.pullPolicy | quote }}}
- {name: EMBERMESH_KUBERNETES_IMAGE_PULL_SECRETS, value: {{ join "," .Values.image.pullSecrets | quote }}}
- {name: EMBERMESH_KUBERNETES_OWNER, value: "{{ include "embermesh.fullname" . }}-jobs"}
- {name: EMBERMESH_KUBERNETES_SERVICE_ACCOUNT, value: {{ include "embermesh.jobsAccount" . | quote }}}
- {name: EMBERMESH_KUBERNETES_SECRETS, value: {{ include "embermesh.storeSecrets" . | fromYamlArray | join "," | quote }}}
- {name: EMBERMESH_KUBERNETES_REDIS_SECRET, value: {{ include "embermesh.redisSecret" . | quote }}}
- {name: EMBERMESH_KUBERNETES_TLS_SECRET, value: {{ .Values.tls.existingSecret | quote }}}
- {name: EMBERMESH_KUBERNETES_CHECKPOINT_CLAIM, value: {{ include "embermesh.checkpointClaim" . | quote }}}
- {name: EMBERMESH_KUBERNETES_NODE_SELECTOR, value: {{ include "embermesh.pairs" .Values.jobs.nodeSelector | quote }}}
- {name: EMBERMESH_KUBERNETES_TOLERATIONS, value: {{ .Values.jobs.tolerations | toJson | quote }}}
- {name: EMBERMESH_KUBERNETES_ZONE_KEY, value: {{ .Values.jobs.zoneKey | quote }}}
{{- end -}}

{{/* A map as key=value,key=value. */}}
{{- define "embermesh.pairs" -}}
{{- $pairs := list -}}
{{- range $key, $value := . }}{{ $pairs = append $pairs (printf "%s=%s" $key $value) }}{{ end -}}
{{- join "," $pairs -}}
{{- end -}}

{{/* Labels of all pods of this release's jobs, and their ports: gateway/kubernetes/names.py. */}}
{{- define "embermesh.jobsLabels" -}}
app.kubernetes.io/name: embermesh-job
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "embermesh.jobsPort" -}}7800{{- end -}}

{{- define "embermesh.jobsMetricsPort" -}}7801{{- end -}}
