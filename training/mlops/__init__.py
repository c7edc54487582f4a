"""The training runtime: everything that runs inside a step's process. Never imports airflow."""
