# Every target sets up what it needs: `.venv` with all packages here, editable.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
SEED ?= 0
BENCH_PEERS ?= .venv-peers
PYTEST := "$(BIN)/python" -m pytest -q -n auto --maxprocesses 4
PACKAGES := plugins/algorithms plugins/curricula plugins/engines plugins/models plugins/rewards plugins/sandboxes plugins/tools \
	env_packages/games env_packages/math env_packages/swebench
PROJECTS := pyproject.toml $(PACKAGES:%=%/pyproject.toml)

.PHONY: setup quickstart test test-all check docs bench-engine bench-pipeline bench-sandbox bench-trainer clean

setup: $(VENV)/.done

$(VENV)/.done: constraints.txt $(PROJECTS)
	test -x "$(BIN)/python" || $(PYTHON) -m venv $(VENV)
	"$(BIN)/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt \
		-e '.[train,docker,report,test]' $(PACKAGES:%=-e %)
	touch $@

quickstart: setup
	"$(BIN)/tunix" train examples/quickstart.toml -o seed=$(SEED) -o run_dir=runs/quickstart --overwrite

test: setup
	$(PYTEST)

test-all: setup
	$(PYTEST) -m ''

check: setup
	"$(BIN)/ruff" check . && "$(BIN)/ruff" format --check . && "$(BIN)/pyright"

# Peers that can't be installed, or a model that can't be fetched, are said; the rest is measured.
bench-engine: setup
	test -x "$(BENCH_PEERS)/torch/bin/python" || $(PYTHON) -m venv "$(BENCH_PEERS)/torch"
	-"$(BENCH_PEERS)/torch/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 transformers
	test -x "$(BENCH_PEERS)/tunix/bin/python" || $(PYTHON) -m venv "$(BENCH_PEERS)/tunix"
	-"$(BENCH_PEERS)/tunix/bin/python" -m pip install --quiet --disable-pip-version-check google-tunix==0.1.7
	-"$(BIN)/tunix" model fetch smollm2-135m
	BENCH_PEERS="$(BENCH_PEERS)" "$(BIN)/python" -m benchmarks.engine

# One scenario: make bench-pipeline ONLY="--only mix"; a first look: ONLY=--quick
bench-pipeline: setup
	"$(BIN)/python" benchmarks/pipeline.py $(ONLY)

# One scenario: make bench-trainer ONLY="--only gemm". Peers that can't be installed are said; the rest is measured.
bench-trainer: setup
	test -x "$(BENCH_PEERS)/torch/bin/python" || $(PYTHON) -m venv "$(BENCH_PEERS)/torch"
	-"$(BENCH_PEERS)/torch/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 trl==1.16.0
	test -x "$(BENCH_PEERS)/tunix/bin/python" || $(PYTHON) -m venv "$(BENCH_PEERS)/tunix"
	-"$(BENCH_PEERS)/tunix/bin/python" -m pip install --quiet --disable-pip-version-check google-tunix==0.1.7
	BENCH_PEERS="$(BENCH_PEERS)" "$(BIN)/python" benchmarks/trainer.py $(ONLY)

docs: setup
	"$(BIN)/python" docs/generate.py

bench-sandbox: setup
	.ci/docker
	"$(BIN)/python" benchmarks/sandbox.py

clean:
	rm -rf $(VENV) .venv-peers build dist runs bench-out
