{{/* The gateway's door: gateway/access_config.py. */}}
{{- define "embermesh.accessEnv" -}}
{{- with .Values.access -}}
- {name: EMBERMESH_ACCESS_MODE, value: {{ .mode | quote }}}
{{- if or .adminDigest .existingSecret }}
- name: EMBERMESH_ACCESS_ADMIN_DIGEST
  valueFrom: {secretKeyRef: {name: {{ include "embermesh.accessSecret" $ }}, key: admin-digest}}
{{- end }}
{{- if .oidc.issuer }}
- {name: EMBERMESH_ACCESS_OIDC_ISSUER, value: {{ .oidc.issuer | quote }}}
- {name: EMBERMESH_ACCESS_OIDC_AUDIENCE, value: {{ .oidc.audience | quote }}}
- {name: EMBERMESH_ACCESS_OIDC_JWKS_URL, value: {{ .oidc.jwksUrl | quote }}}
- {name: EMBERMESH_ACCESS_OIDC_TENANT_CLAIM, value: {{ .oidc.tenantClaim | quote }}}
- {name: EMBERMESH_ACCESS_OIDC_ROLE_CLAIM, value: {{ .oidc.roleClaim | quote }}}
{{- end }}
- {name: EMBERMESH_ACCESS_RATE_PER_SECOND, value: {{ .ratePerSecond | quote }}}
- {name: EMBERMESH_ACCESS_RATE_BURST, value: {{ .rateBurst | int64 | quote }}}
- {name: EMBERMESH_ACCESS_MAX_BODY_BYTES, value: {{ .maxBodyBytes | int64 | quote }}}
- {name: EMBERMESH_ACCESS_CORS_ORIGINS, value: {{ join "," .corsOrigins | quote }}}
- {name: EMBERMESH_ACCESS_QUOTA_JOBS, value: {{ .quota.jobs | int64 | quote }}}
- {name: EMBERMESH_ACCESS_QUOTA_TRAINERS, value: {{ .quota.trainers | int64 | quote }}}
- {name: EMBERMESH_ACCESS_QUOTA_MEMORY_GIB, value: {{ .quota.memoryGiB | quote }}}
{{- end }}
{{- end -}}
