# The only list of commands. A second call of any of them repeats no set-up work.
.DEFAULT_GOAL := help
SHELL := bash
PY := .venv/bin/python
JOBS := $(shell getconf _NPROCESSORS_ONLN)
SAN ?=

DEPS := .venv/.stamp-deps
BUILT := .venv/.stamp-built
KAFKA := .cache/kafka/lib/.complete
GRAFANA := .cache/grafana/.complete
PROTOS := $(wildcard services/wire/*.proto)
NATIVE := $(shell find ps_service/native trainer_service/native -not -path '*/tests/*' \
  \( -name '*.h' -o -name '*.cc' -o -name CMakeLists.txt \) 2>/dev/null)
CXX_FILES = $(shell find ps_service/native trainer_service/native -name '*.h' -o -name '*.cc')

$(DEPS): pyproject.toml constraints.txt tools/setup.sh tools/requirements.py
	@tools/setup.sh python && touch $@

$(BUILT): $(DEPS) $(PROTOS) $(NATIVE) CMakeLists.txt tools/gen_protos.py
	@tools/setup.sh native && touch $@

$(KAFKA): deploy/kafka/pom.xml
	@tools/setup.sh kafka

$(GRAFANA): deploy/grafana/check/package.json
	@tools/setup.sh grafana

.PHONY: help setup system build proto fmt lint type test test-native test-aarch64 fuzz e2e e2e-compose e2e-k8s bench-train bench-engine bench-quality demo dashboards-png console-png up down ci clean

help: ## list these targets
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

setup: $(BUILT) system $(KAFKA) $(GRAFANA) ## everything a developer needs: .venv, native build, test parts

system:
	@tools/setup.sh system

build: $(BUILT) ## .venv, extensions and protobuf stubs

proto: $(DEPS) ## regenerate services/wire/*_pb2*
	@$(PY) tools/gen_protos.py

fmt: $(DEPS) ## format Python and C++
	@.venv/bin/ruff check --fix-only --quiet . && .venv/bin/ruff format . && .venv/bin/clang-format -i $(CXX_FILES)

lint: $(BUILT) ## style, architecture and bug patterns of Python and C++
	@.venv/bin/ruff check . && .venv/bin/ruff format --check . && .venv/bin/lint-imports --no-logo
	@.venv/bin/clang-format --dry-run -Werror $(CXX_FILES)
	@tools/tidy.sh $(JOBS)

type: $(BUILT) ## mypy, strict
	@.venv/bin/mypy

test: setup test-native ## C++ and Python tests, whole-job tests of minutes left out
	@$(PY) -m pytest -m "not (e2e and slow)"

test-native: ## C++ tests; SAN=address or SAN=thread adds a sanitizer
	@cmake -S . -B build/native-$(or $(SAN),plain) -DEMBERMESH_BUILD_TESTS=ON -DEMBERMESH_SANITIZE=$(SAN) --log-level=WARNING
	@cmake --build build/native-$(or $(SAN),plain) -j $(JOBS)
	@ctest --test-dir build/native-$(or $(SAN),plain) --output-on-failure -j $(JOBS) --no-tests=error

test-aarch64: ## the C++ tests, cross-compiled for 64-bit Arm, in an emulator; SECONDS=600 at most for the tests
	@tools/aarch64.sh $(JOBS) $(or $(SECONDS),600)

fuzz: ## feed random bytes to every native parser; SECONDS_EACH=600, and CORPUS keeps what was found
	@tools/fuzz.sh $(or $(SECONDS_EACH),120) $(or $(CORPUS),build/fuzz-corpus) $(JOBS)

e2e: setup ## whole jobs as real processes
	@$(PY) -m pytest -m e2e

e2e-compose: $(BUILT) ## the platform in containers on a real Docker Engine: images, jobs, failures; the last line is JSON
	@$(PY) -m tools.e2e_compose

e2e-k8s: $(BUILT) ## the Helm chart on a real Kubernetes: install, jobs, failures, upgrade, uninstall; the last line is JSON
	@$(PY) -m tools.e2e_k8s

bench-train: $(BUILT) ## measure training beside TensorFlow, and the modes over a slow network
	@$(PY) bench/train.py

bench-engine: $(BUILT) ## measure the sparse engine beside the memory bus, std::unordered_map and TensorFlow
	@$(PY) bench/engine.py

bench-quality: $(BUILT) ## compare the AUC of all modes, an hour; ARGS="--quick --data criteo" for a look
	@$(PY) bench/quality/run.py $(ARGS)

demo: $(BUILT) ## train, checkpoint and restore one job; the last line is its result as JSON
	@$(PY) -m embermesh.demo

dashboards-png: setup ## run a job on a cluster of its own and draw every dashboard from a live Prometheus
	@$(PY) -m tools.dashboards_png $(or $(OUT),build/dashboards)

console-png: setup ## run a job on a cluster of its own and take a picture of every page of the console, light and dark
	@$(PY) -m tools.console_png $(or $(OUT),build/console)

up: ## start every service in containers
	@docker compose up --detach --build --wait

down: ## stop them
	@docker compose down

ci: lint type test ## what a change must pass

clean: ## remove what was built; .venv and downloads stay
	@rm -rf build $(BUILT) .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	@rm -f services/wire/*_pb2* ps_service/_native*.so trainer_service/_native*.so
