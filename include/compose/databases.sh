#!/bin/sh
# Run by the postgres image when its volume is empty: a role and a database each for Airflow and MLflow, which cannot
# read each other's.
set -eu

psql --set=ON_ERROR_STOP=1 --username="$POSTGRES_USER" --dbname=postgres \
    --set=airflow_password="$AIRFLOW_DB_PASSWORD" --set=mlflow_password="$MLFLOW_DB_PASSWORD" <<'SQL'
CREATE ROLE airflow LOGIN PASSWORD :'airflow_password';
CREATE ROLE mlflow LOGIN PASSWORD :'mlflow_password';
CREATE DATABASE airflow OWNER airflow;
CREATE DATABASE mlflow OWNER mlflow;
REVOKE CONNECT ON DATABASE airflow, mlflow FROM PUBLIC;
SQL
