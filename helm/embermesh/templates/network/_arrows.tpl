{{/* The one table of who may open a connection to whom inside a release (docs/security.md); both ends' policies are made of
it. `server` stands for sparse-PS and dense-PS. Trainers reach each other's shards with placement embedded. */}}
{{- define "embermesh.arrows" -}}
{{- $v := .Values -}}
- {from: gateway, to: checkpoint, ports: [{{ $v.checkpoint.port }}]}
- {from: trainer, to: server, ports: [{{ include "embermesh.jobsPort" . }}]}
- {from: trainer, to: trainer, ports: [{{ include "embermesh.jobsPort" . }}]}
- {from: checkpoint, to: trainer, ports: [{{ include "embermesh.jobsPort" . }}]}
- {from: checkpoint, to: server, ports: [{{ include "embermesh.jobsPort" . }}]}
{{- if $v.redis.enabled }}
{{- range list "gateway" "checkpoint" "trainer" "server" }}
- {from: {{ . }}, to: redis, ports: [6379]}
{{- end }}
{{- end }}
{{- if $v.kafka.enabled }}
- {from: trainer, to: kafka, ports: [9092]}
- {from: kafka, to: kafka, ports: [9092]}
{{- end }}
- {from: test, to: gateway, ports: [{{ $v.gateway.port }}]}
- {from: test, to: checkpoint, ports: [{{ $v.checkpoint.metricsPort }}]}
{{- end -}}

{{/* From outside the release; `peers` empty = everybody. */}}
{{- define "embermesh.entrances" -}}
{{- $n := .Values.networkPolicy -}}
- {to: gateway, ports: [{{ .Values.gateway.port }}], peers: {{ concat $n.gatewayFrom (ternary (list) $n.prometheusFrom (empty $n.gatewayFrom)) | toJson }}}
- {to: checkpoint, ports: [{{ .Values.checkpoint.metricsPort }}], peers: {{ toJson $n.prometheusFrom }}}
- {to: trainer, ports: [{{ include "embermesh.jobsMetricsPort" . }}], peers: {{ toJson $n.prometheusFrom }}}
- {to: server, ports: [{{ include "embermesh.jobsMetricsPort" . }}], peers: {{ toJson $n.prometheusFrom }}}
{{- if and .Values.kafka.enabled $n.kafkaFrom }}
- {to: kafka, ports: [9092], peers: {{ toJson $n.kafkaFrom }}}
{{- end }}
{{- end -}}

{{/* To addresses outside the release that policies can't name: any address, these ports. */}}
{{- define "embermesh.exits" -}}
{{- $n := .Values.networkPolicy -}}
- {from: gateway, ports: {{ concat $n.apiServerPorts $n.storePorts | uniq | toJson }}}
- {from: checkpoint, ports: {{ toJson $n.storePorts }}}
- {from: trainer, ports: {{ concat $n.storePorts (ternary (list) $n.kafkaPorts .Values.kafka.enabled) | uniq | toJson }}}
- {from: server, ports: {{ toJson $n.storePorts }}}
{{- if not .Values.redis.enabled }}
{{- range list "gateway" "checkpoint" "trainer" "server" }}
- {from: {{ . }}, ports: [{{ $n.redisPort }}]}
{{- end }}
{{- end }}
{{- end -}}
