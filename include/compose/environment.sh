#!/bin/sh
# Writes the .env that docker-compose.yaml reads: random secrets, made once. `make compose-env` runs it.
set -eu

target=${1:-.env}

random_hex() { od -An -N"$1" -tx1 /dev/urandom | tr -d ' \n'; }
# 32 bytes in URL-safe base64, as https://cryptography.io/en/latest/fernet/ has it.
fernet_key() { head -c 32 /dev/urandom | base64 | tr '+/' '-_'; }

# mktemp's files are readable by their owner only, from the first byte.
draft=$(mktemp "$target.XXXXXX")
trap 'rm -f "$draft"' EXIT
trap 'exit 1' HUP INT TERM
cat > "$draft" <<EOT
# Secrets of docker-compose.yaml, made by \`make compose-env\`. Not for git.
# The databases keep the passwords of their first start: a new .env needs \`docker compose down --volumes\`, which
# deletes all data.
POSTGRES_PASSWORD=$(random_hex 24)
AIRFLOW_DB_PASSWORD=$(random_hex 24)
MLFLOW_DB_PASSWORD=$(random_hex 24)
REDIS_PASSWORD=$(random_hex 24)
S3_ACCESS_KEY=$(random_hex 10)
S3_SECRET_KEY=$(random_hex 24)
MLFLOW_ADMIN_PASSWORD=$(random_hex 12)
MLFLOW_STEPS_PASSWORD=$(random_hex 24)
MLFLOW_RELEASE_PASSWORD=$(random_hex 24)
MLFLOW_READER_PASSWORD=$(random_hex 24)
MLFLOW_COOKIE_KEY=$(random_hex 32)
AIRFLOW_ADMIN_PASSWORD=$(random_hex 12)
AIRFLOW_FERNET_KEY=$(fernet_key)
AIRFLOW_JWT_SECRET=$(random_hex 32)
AIRFLOW_API_SECRET_KEY=$(random_hex 32)
EOT

# Unlike mv, ln never replaces a file: an .env with the passwords of living databases stays.
if ! ln "$draft" "$target"; then
    echo "$target is there already: remove it yourself if its secrets may go" >&2
    exit 1
fi
echo "$target written; log in as admin, to Airflow with its AIRFLOW_ADMIN_PASSWORD, to MLflow with its MLFLOW_ADMIN_PASSWORD"
