{{/* Name of everything in this release. */}}
{{- define "embermesh.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Labels that choose pods; call with (dict "root" $ "part" "gateway"). */}}
{{- define "embermesh.selector" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- end -}}

{{- define "embermesh.labels" -}}
{{ include "embermesh.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end -}}

{{/* Image of one of our services; call with (dict "root" $ "name" .Values.gateway.image). */}}
{{- define "embermesh.image" -}}
{{- $tag := .root.Values.image.tag | default .root.Chart.AppVersion -}}
{{- if .root.Values.image.registry -}}
{{- printf "%s/%s:%s" .root.Values.image.registry .name $tag -}}
{{- else -}}
{{- printf "%s:%s" .name $tag -}}
{{- end -}}
{{- end -}}

{{- define "embermesh.gatewayAccount" -}}
{{- .Values.serviceAccounts.gateway | default (include "embermesh.fullname" .) -}}
{{- end -}}

{{- define "embermesh.jobsAccount" -}}
{{- .Values.serviceAccounts.jobs | default (printf "%s-jobs" (include "embermesh.fullname" .)) -}}
{{- end -}}

{{/* Secrets: ours, or the user's own. */}}
{{- define "embermesh.accessSecret" -}}
{{- .Values.access.existingSecret | default (printf "%s-access" (include "embermesh.fullname" .)) -}}
{{- end -}}

{{- define "embermesh.redisSecret" -}}
{{- .Values.redis.existingSecret | default (printf "%s-redis" (include "embermesh.fullname" .)) -}}
{{- end -}}

{{/* Secrets whose keys are variables for the object store, as a YAML list. */}}
{{- define "embermesh.storeSecrets" -}}
{{- with .Values.s3 -}}
{{- if or .endpointUrl .region .accessKeyId }}
- {{ include "embermesh.fullname" $ }}-s3
{{- end }}
{{- with .existingSecret }}
- {{ . }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "embermesh.checkpointClaim" -}}
{{- if .Values.checkpointVolume.enabled -}}
{{- .Values.checkpointVolume.existingClaim | default (printf "%s-checkpoints" (include "embermesh.fullname" .)) -}}
{{- end -}}
{{- end -}}

{{- define "embermesh.redisUrl" -}}
{{- if .Values.redis.enabled -}}
{{- $door := "" -}}
{{- with .Values.redis.password -}}{{- $door = printf ":%s@" (urlquery .) -}}{{- end -}}
redis://{{ $door }}{{ include "embermesh.fullname" . }}-redis:6379/0
{{- else -}}
{{- .Values.redis.url -}}
{{- end -}}
{{- end -}}
