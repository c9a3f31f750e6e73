{{/* What all pods have in common; call with (dict "root" $ "account" name "token" bool "user" uid). */}}
{{- define "embermesh.podDefaults" -}}
serviceAccountName: {{ .account }}
automountServiceAccountToken: {{ .token }}
# Kubernetes would inject variables like EMBERMESH_CHECKPOINT_PORT, which our strict settings refuse.
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: {{ .user | default 10001 }}
  runAsGroup: {{ .user | default 10001 }}
  fsGroup: {{ .user | default 10001 }}
  seccompProfile: {type: RuntimeDefault}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with .root.Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "embermesh.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* A pod's annotations; call with (dict "root" $ "secrets" values). The pod is made anew when those values change. */}}
{{- define "embermesh.podAnnotations" -}}
checksum/secrets: {{ .secrets | toJson | sha256sum }}
{{- with .root.Values.podAnnotations }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "embermesh.probes" -}}
# A crowded node may take minutes to start it; after that, a minute without an answer is too long.
startupProbe:
  httpGet: {path: /healthz, port: {{ . }}}
  periodSeconds: 2
  timeoutSeconds: 5
  failureThreshold: 150
readinessProbe:
  httpGet: {path: /readyz, port: {{ . }}}
  periodSeconds: 5
  timeoutSeconds: 3
livenessProbe:
  httpGet: {path: /healthz, port: {{ . }}}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
{{- end -}}

{{/* Variables that name the certificates, and the mounts and volumes that every service of ours has. */}}
{{- define "embermesh.tlsEnv" -}}
{{- if .Values.tls.existingSecret }}
- {name: EMBERMESH_TLS_CA, value: /certs/ca.crt}
- {name: EMBERMESH_TLS_CERT, value: /certs/tls.crt}
- {name: EMBERMESH_TLS_KEY, value: /certs/tls.key}
- {name: EMBERMESH_TLS_NAME, value: {{ .Values.tls.name | quote }}}
{{- end }}
{{- end -}}

{{- define "embermesh.mounts" -}}
- {name: tmp, mountPath: /tmp}
{{- if .Values.tls.existingSecret }}
- {name: tls, mountPath: /certs, readOnly: true}
{{- end }}
{{- if .Values.checkpointVolume.enabled }}
- {name: checkpoints, mountPath: /checkpoints}
{{- end }}
{{- end -}}

{{- define "embermesh.volumes" -}}
- name: tmp
  emptyDir: {}
{{- with .Values.tls.existingSecret }}
- name: tls
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- with include "embermesh.checkpointClaim" . }}
- name: checkpoints
  persistentVolumeClaim: {claimName: {{ . }}}
{{- end }}
{{- end -}}

{{/* A claim; call with (dict "root" $ "part" "redis" "suffix" "redis" "of" .Values.redis "accessMode" …). */}}
{{- define "embermesh.claim" -}}
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: {{ include "embermesh.fullname" .root }}-{{ .suffix }}
  labels: {{- include "embermesh.labels" . | nindent 4 }}
  {{- if .of.keep }}
  annotations: {helm.sh/resource-policy: keep}
  {{- end }}
spec:
  accessModes: [{{ .accessMode }}]
  {{- with .of.storageClass }}
  storageClassName: {{ . }}
  {{- end }}
  resources:
    requests:
      storage: {{ .of.size }}
{{- end -}}
