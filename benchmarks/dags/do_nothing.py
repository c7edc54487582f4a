"""Seven tasks in a line that do nothing: what Airflow needs to run as many tasks as a night has."""

from airflow.sdk import DAG, task
from airflow.sdk.bases.operator import chain

with DAG("do_nothing", schedule=None, catchup=False):

    @task
    def nothing() -> None:
        """Return at once."""

    chain(*(nothing.override(task_id=f"task_{position}")() for position in range(7)))
