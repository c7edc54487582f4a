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

.PHONY: lock
lock: $(UV) ## Resolve the lock files of the three runtimes and of the development tools
	$(COMPILE) --upgrade --group airflow -o requirements.txt
	$(COMPILE) --upgrade --group training --no-emit-package torch $(LOCK_TORCH) -o training/requirements.txt
	$(COMPILE) --upgrade --group validation -o training/requirements-validation.txt
	$(COMPILE) --upgrade --group dev -c requirements.txt -c training/requirements.txt -o tests/requirements.txt

.PHONY: venv
venv: .venv/airflow/.ready .venv/training/.ready .venv/validation/.ready ## Make the three virtual environments

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

# The development tools stand beside both runtimes, so that tests and mypy see what the code sees.
.venv/%/.dev: tests/requirements.txt .venv/%/.ready
	$(UV) pip install --quiet --python .venv/$* --no-deps -r tests/requirements.txt
	touch $@
