#!/usr/bin/env bash
# clang-tidy (checks: .clang-tidy) over our C++ sources, bindings included: tools/tidy.sh JOBS
#
# The compile commands are those of the editable build. Headers are checked through the sources that include them.
set -euo pipefail
cd "$(dirname "$0")/.."

database=$(find build -maxdepth 2 -name compile_commands.json -path '*-editable/*' -printf '%T@ %h\n' | sort -rn | head -1 | cut -d' ' -f2)
if [ -z "$database" ]; then
  echo "tidy: no compile commands: run make build first" >&2
  exit 1
fi
find ps_service/native trainer_service/native -name '*.cc' -not -path '*/tests/*' -not -path '*/bench/*' -not -path '*/fuzz/*' -print0 |
  xargs -0 -r -n 1 -P "${1:-1}" .venv/bin/clang-tidy -p "$database" --quiet
