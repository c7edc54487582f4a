"""An Airflow provider for production training pipelines. Importing it loads nothing but the version."""

__version__ = "0.1.0"
