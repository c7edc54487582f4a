"""
``python -m benchmarks.parse_pass FILE PROCESS [DAG_ID]``: read a DAG file once; print CPU seconds and number of DAGs.

PROCESS says whose fork reads it: that of the ``scheduler`` (a task), of the ``dag-processor``, or nobody's (``fresh``).
"""

from __future__ import annotations

import sys
import time
from pathlib import Path


def main(path: Path, process: str, dag_id: str | None) -> None:
    """Airflow is imported in here: which process it is must be known before."""
    sys.argv = ["airflow", process]  # read by plugins/airflow_local_settings.py
    from airflow.dag_processing.dagbag import BundleDagBag
    from airflow.sdk.definitions._internal.dag_parsing_context import _airflow_parsing_context_manager

    begin = time.process_time()
    with _airflow_parsing_context_manager(dag_id=dag_id, task_id="train" if dag_id else None):
        bag = BundleDagBag(
            dag_folder=path, safe_mode=False, load_op_links=False, bundle_path=path.parent, bundle_name="bench"
        )
    seconds = time.process_time() - begin
    if bag.import_errors:
        sys.exit(f"{path}: {bag.import_errors}")
    print(f"{seconds} {len(bag.dags)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else None)
