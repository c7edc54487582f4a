"""A whole local deployment: Airflow's processes and an MLflow server, on SQLite, inside one folder."""
