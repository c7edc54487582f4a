"""Tasks in a line that do nothing, seven as a night has, or one: what Airflow needs to run as many."""

from airflow.sdk import DAG, task
from airflow.sdk.bases.operator import chain

for dag_id, number in {"do_nothing": 7, "do_nothing_once": 1}.items():
    with DAG(dag_id, schedule=None, catchup=False) as dag:

        @task
        def nothing() -> None:
            """Return at once."""

        chain(*(nothing.override(task_id=f"task_{position}")() for position in range(number)))
    globals()[dag_id] = dag
