#!/usr/bin/env bash
# KAFKA_LOG_DIRS=/x becomes log.dirs=/x (as in the apache/kafka image: `_` is a dot, `__` an underscore); an empty log folder
# is formatted once; then the broker takes this shell's place and gets its signals.
set -euo pipefail
config=/tmp/server.properties
env | sed -n 's/^KAFKA_\([A-Z0-9_]*\)=\(.*\)$/\1 \2/p' | while read -r name value; do
  case "$name" in HEAP_OPTS | OPTS | JMX_OPTS) continue ;; esac
  name=$(printf '%s' "$name" | sed 's/__/\x01/g; s/_/./g; s/\x01/_/g' | tr '[:upper:]' '[:lower:]')
  printf '%s=%s\n' "$name" "$value"
done >"$config"
java=(java ${KAFKA_HEAP_OPTS:--Xmx1g} ${KAFKA_OPTS:-} -cp "/opt/kafka/lib/*")
"${java[@]}" kafka.tools.StorageTool format --ignore-formatted --config "$config" \
  --cluster-id "${CLUSTER_ID:-5L6g3nShT-eMCtK--X86sw}"
exec "${java[@]}" kafka.Kafka "$config"
