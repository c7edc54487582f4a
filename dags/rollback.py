"""Takes the present version of a model out of production and puts the former one there, in seconds. By hand."""

from airflow.sdk import DAG, Param

from mlops_provider.operators.rollback import RollbackOperator

with DAG(
    dag_id="rollback",
    description="Put the former champion of a model into production again",
    schedule=None,
    catchup=False,
    is_paused_upon_creation=False,  # who needs it is in a hurry
    max_active_runs=1,
    tags=["mlops", "operations"],
    params={
        "model": Param(type="string", minLength=1, description="Registered model, e.g. flight_ranking"),
        "why": Param(type="string", minLength=1, description="For the audit trail"),
    },
):
    RollbackOperator(task_id="rollback", model="{{ params.model }}", why="{{ params.why }}")
