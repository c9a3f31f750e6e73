#!/usr/bin/env bash
# Builds the images of deploy/Dockerfile with the engine that docker reaches, and prints "NAME MB" for each.
#
#   deploy/build.sh [gateway|ps|trainer|checkpoint …]     default: all four
#
# TAG names another tag than the version of pyproject.toml. Where there is no engine: deploy/engine/engine.sh up.
set -euo pipefail
cd "$(dirname "$0")/.."
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml | head -n 1)
export IMAGE_TAG=${TAG:-$version}
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=(gateway ps trainer checkpoint)

# Compose brings BuildKit along, also where docker has no buildx. `sparse-ps` is the service whose image is `ps`.
docker compose build --quiet "${targets[@]/#ps/sparse-ps}" >&2
for target in "${targets[@]}"; do
  bytes=$(docker image inspect --format '{{.Size}}' "embermesh-$target:$IMAGE_TAG")
  printf '%s %d\n' "embermesh-$target:$IMAGE_TAG" $((bytes / 1000000))
done
