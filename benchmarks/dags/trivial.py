"""As many DAGs as NUM_DAGS says, of six tasks that do nothing: what Airflow itself needs to read a DAG."""

import os

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG
from airflow.sdk.bases.operator import chain
from airflow.timetables.interval import CronDataIntervalTimetable
from pendulum import datetime

for number in range(int(os.environ["NUM_DAGS"])):
    with DAG(
        dag_id=f"dag_{number:03}",
        schedule=CronDataIntervalTimetable("0 0 * * *", timezone="America/New_York"),
        start_date=datetime(2013, 1, 31, tz="America/New_York"),
        catchup=False,
    ) as dag:
        chain(*(EmptyOperator(task_id=f"task_{position}") for position in range(6)))
    globals()[dag.dag_id] = dag
