"""Registers the plugin where this folder, not the wheel, is deployed. With the wheel its entry point does so."""

from importlib.metadata import PackageNotFoundError, version

try:
    version("airflow-provider-mlops")
except PackageNotFoundError:
    from mlops_provider.plugin import MlopsPlugin  # noqa: F401
