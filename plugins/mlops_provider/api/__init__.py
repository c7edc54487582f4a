"""The REST API below ``/mlops/api/v1`` of Airflow's API server."""
