# Every target sets up what it needs: `.venv` with all packages here, editable.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
SEED ?= 0
PACKAGES := plugins/algorithms plugins/engines plugins/models plugins/rewards plugins/curricula env_packages/games env_packages/math
PROJECTS := pyproject.toml $(PACKAGES:%=%/pyproject.toml)

.PHONY: setup quickstart test test-all check docs bench-pipeline bench-trainer clean

setup: $(VENV)/.done

$(VENV)/.done: constraints.txt $(PROJECTS)
	test -x "$(BIN)/python" || $(PYTHON) -m venv $(VENV)
	"$(BIN)/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt \
		-e '.[train,test,report]' $(PACKAGES:%=-e %)
	touch $@

quickstart: setup
	"$(BIN)/tunix" train examples/quickstart.toml -o seed=$(SEED) -o run_dir=runs/quickstart --overwrite

test: setup
	"$(BIN)/python" -m pytest -q

test-all: setup
	"$(BIN)/python" -m pytest -q -m ''

check: setup
	"$(BIN)/ruff" check . && "$(BIN)/ruff" format --check . && "$(BIN)/pyright"

# One scenario: make bench-pipeline ONLY="--only mix"; a first look: ONLY=--quick
bench-pipeline: setup
	"$(BIN)/python" benchmarks/pipeline.py $(ONLY)

# One scenario: make bench-trainer ONLY="--only gemm"; peers: BENCH_PEERS, or .venv-peers/
bench-trainer: setup
	"$(BIN)/python" benchmarks/trainer.py $(ONLY)

docs: setup
	"$(BIN)/python" docs/generate.py

clean:
	rm -rf $(VENV) build dist runs bench-out
