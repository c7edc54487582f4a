#!/bin/sh
# Starts MLflow with its login, in a container: docker-compose.yaml and include/kubernetes/50-mlflow.yaml run it. `mlops logins`
# then makes the users. Needs MLFLOW_BACKEND_STORE_URI, MLFLOW_AUTH_ADMIN_PASSWORD and MLFLOW_FLASK_SERVER_SECRET_KEY; with
# MLFLOW_ENABLE_WORKSPACES=true there is a workspace for each team (SECURITY.md).
set -eu

umask 077
# The users are in MLflow's own database. A percent sign means something in this file.
database=$(printf %s "$MLFLOW_BACKEND_STORE_URI" | sed 's/%/%%/g')
cat > /tmp/login.ini <<EOT
[mlflow]
# Nothing without a role: mlops_provider/logins.py has them.
default_permission = NO_PERMISSIONS
database_uri = $database
admin_username = admin
# A password is checked once a minute: that takes tens of milliseconds, on purpose.
auth_cache_ttl_seconds = 60
EOT
export MLFLOW_AUTH_CONFIG_PATH=/tmp/login.ini
exec mlflow server --app-name=basic-auth --host=0.0.0.0 --port=5000 --workers=2
