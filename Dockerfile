# Images of the three runtimes, each from its lock file.
#
#   docker build --target airflow    -t mlops/airflow:0.1.0 .      scheduler, API server, DAG processor, triggerer
#   docker build --target training   -t mlops/training:0.1.0 .     every step but validate; the MLflow server
#   docker build --target validation -t mlops/validation:0.1.0 .   the validate step
#   docker build --target local      -t mlops/local:0.1.0 .        airflow and both other runtimes, for docker-compose.yaml
#
# Build arguments:
#   TORCH_BUILD   uv's options that choose torch's build; it is pinned in pyproject.toml, its build is the platform's:
#                 "--torch-backend cpu" (default), "--torch-backend cu130" and the like for NVIDIA, or
#                 "--index-url https://..." for a mirror. The CUDA builds bring CUDA along: no other base image is needed.
#   GIT_COMMIT    recorded with each training run: --build-arg GIT_COMMIT="$(git rev-parse HEAD)"
#   PIP_INDEX_URL, UV_DEFAULT_INDEX   another package index than PyPI
#
# Nothing is written outside /tmp at run time: the images run with a read-only root file system.

ARG PYTHON_TAG=3.11.15-slim-bookworm

FROM python:${PYTHON_TAG} AS base
# The uid that the pods ask for (spec of the launcher) and that Airflow's Helm chart expects.
RUN groupadd --gid 50000 mlops \
    && useradd --uid 50000 --gid 50000 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin mlops
# Byte code is compiled below, at build; at run time there is nowhere to write it.
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONPATH=/opt/mlops:/opt/mlops/plugins:/opt/mlops/training \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/tmp \
    LANG=C.UTF-8 \
    MLOPS_HOME=/opt/mlops
WORKDIR /opt/mlops
STOPSIGNAL SIGTERM
LABEL org.opencontainers.image.title="airflow-provider-mlops" \
      org.opencontainers.image.description="Production ML training pipelines for Apache Airflow 3" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="Apache-2.0"

# --- Virtual environments. Locks only: a change of code leaves these layers as they are. ---

FROM base AS builder
ARG UV_VERSION=0.13.8
ARG PIP_INDEX_URL
ARG UV_DEFAULT_INDEX
ENV UV_CACHE_DIR=/root/.cache/uv \
    UV_LINK_MODE=copy \
    UV_COMPILE_BYTECODE=1 \
    UV_PYTHON_DOWNLOADS=never \
    PYC_INVALIDATION_MODE=UNCHECKED_HASH
WORKDIR /build
RUN --mount=type=cache,target=/root/.cache/pip,sharing=locked \
    pip install --disable-pip-version-check uv==${UV_VERSION}

FROM builder AS airflow-venv
# Relocatable, here and below: `local` has three of them in one image.
RUN --mount=type=cache,target=/root/.cache/uv,sharing=locked \
    --mount=type=bind,source=requirements.txt,target=/build/requirements.txt \
    uv venv --python /usr/local/bin/python3.11 --relocatable /opt/venv \
    && uv pip install --python /opt/venv --no-deps --require-hashes -r requirements.txt

FROM builder AS training-venv
ARG TORCH_BUILD="--torch-backend cpu"
RUN --mount=type=cache,target=/root/.cache/uv,sharing=locked \
    --mount=type=bind,source=training/requirements.txt,target=/build/requirements.txt \
    uv venv --python /usr/local/bin/python3.11 --relocatable /opt/venv \
    && uv pip install --python /opt/venv --no-deps --require-hashes -r requirements.txt
# TORCH_BUILD is several words.
# hadolint ignore=SC2086
RUN --mount=type=cache,target=/root/.cache/uv,sharing=locked \
    --mount=type=bind,source=pyproject.toml,target=/build/pyproject.toml \
    uv pip install --python /opt/venv --group torch ${TORCH_BUILD}

FROM builder AS validation-venv
RUN --mount=type=cache,target=/root/.cache/uv,sharing=locked \
    --mount=type=bind,source=training/requirements-validation.txt,target=/build/requirements.txt \
    uv venv --python /usr/local/bin/python3.11 --relocatable /opt/venv \
    && uv pip install --python /opt/venv --no-deps --require-hashes -r requirements.txt

# --- The project's code, compiled. The lock files go along: a training run records their hashes. ---

FROM base AS code
COPY requirements.txt ./
COPY training ./training
COPY plugins/mlops_provider ./plugins/mlops_provider
COPY include ./include
RUN python -m compileall -q --invalidation-mode unchecked-hash /opt/mlops

FROM code AS airflow-code
COPY plugins ./plugins
COPY dags ./dags
RUN python -m compileall -q --invalidation-mode unchecked-hash /opt/mlops

# --- The images. ---

FROM base AS validation
COPY --from=validation-venv /opt/venv /opt/venv
COPY --from=code /opt/mlops /opt/mlops
ARG GIT_COMMIT=""
ENV MLOPS_GIT_COMMIT=${GIT_COMMIT}
LABEL org.opencontainers.image.revision=${GIT_COMMIT}
USER 50000:50000
HEALTHCHECK --interval=5m --timeout=30s --start-period=30s \
    CMD ["python", "-c", "import mlops.steps.validate"]
CMD ["python", "-m", "mlops.commands", "--help"]

FROM base AS training
# LightGBM's threads; torch brings its own. Of this release of Debian there is one version, with its security updates.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends libgomp1 && rm -rf /var/lib/apt/lists/*
COPY --from=training-venv /opt/venv /opt/venv
COPY --from=code /opt/mlops /opt/mlops
ARG GIT_COMMIT=""
ENV MLOPS_GIT_COMMIT=${GIT_COMMIT}
LABEL org.opencontainers.image.revision=${GIT_COMMIT}
USER 50000:50000
# Finds the libraries without loading them, for a training has the cores.
HEALTHCHECK --interval=5m --timeout=30s --start-period=30s \
    CMD ["python", "-c", "import importlib.util as u; assert all(map(u.find_spec, ('torch', 'mlflow', 'mlops.steps')))"]
CMD ["python", "-m", "mlops.commands", "--help"]

FROM base AS airflow-runtime
COPY --from=airflow-venv /opt/venv /opt/venv
# For logs on a volume, which takes over this folder's owner.
RUN install -d -o 50000 -g 50000 /var/log/airflow && install -d -m 700 -o 50000 -g 50000 /keys
ENV AIRFLOW_HOME=/tmp/airflow \
    AIRFLOW__CORE__DAGS_FOLDER=/opt/mlops/dags \
    AIRFLOW__CORE__PLUGINS_FOLDER=/opt/mlops/plugins \
    AIRFLOW__CORE__LOAD_EXAMPLES=False
EXPOSE 8080
# Of the API server, which the image starts by default; the other processes have `airflow jobs check`.
HEALTHCHECK --interval=30s --timeout=10s --start-period=60s \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8080/api/v2/version', timeout=5)"]
CMD ["airflow", "api-server"]

FROM airflow-runtime AS local
COPY --from=validation-venv /opt/venv /opt/validation
COPY --from=training-venv /opt/venv /opt/training
# Scratch data of the steps may be a volume too: gigabytes, where /tmp is memory.
RUN install -d -o 50000 -g 50000 /scratch
COPY --from=airflow-code /opt/mlops /opt/mlops
ENV AIRFLOW__MLOPS__TRAINING_PYTHON=/opt/training/bin/python \
    AIRFLOW__MLOPS__VALIDATION_PYTHON=/opt/validation/bin/python
ARG GIT_COMMIT=""
ENV MLOPS_GIT_COMMIT=${GIT_COMMIT}
LABEL org.opencontainers.image.revision=${GIT_COMMIT}
USER 50000:50000

# Last: what `docker build` makes where no target is named.
FROM airflow-runtime AS airflow
COPY --from=airflow-code /opt/mlops /opt/mlops
ARG GIT_COMMIT=""
ENV MLOPS_GIT_COMMIT=${GIT_COMMIT}
LABEL org.opencontainers.image.revision=${GIT_COMMIT}
USER 50000:50000
