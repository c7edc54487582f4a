"""What the parts of the provider know a pipeline's tasks by: keys of XComs, and the tag of the DAGs."""

from __future__ import annotations

from typing import Final

FAILURE_KEY: Final = "failure"
"""Of a failed step: its :class:`mlops.contract.step.Failure`, for whoever follows a run."""
CODE_KEY: Final = "code"
"""Of a step that runs files of the user's: their digest, as it was when the try began."""
NEWS_KEY: Final = "news"
"""Of a step: a mapping whose :data:`NEWS` is a sentence, what has gone into production by it, or why nothing has."""
NEWS: Final = "said"
TRIES: Final = "TrialOperator"
TUNES: Final = "TuneOperator"
EVALUATES: Final = "EvaluateOperator"
VALIDATES: Final = "ValidateOperator"
CANARIES: Final = "CanaryOperator"
APPROVES: Final = "ApproveOperator"
PROMOTES: Final = "PromoteOperator"
ROLLS_BACK: Final = "RollbackOperator"
EXPERIMENTS: Final = "ExperimentOperator"
"""Classes of operators, as Airflow's database names them: whoever reads it need not import them."""
OPERATIONS_TAG: Final = "operations"
"""Tag of the DAGs that roll models back."""
PIPELINE_TAG: Final = "mlops"
"""Tag of the DAGs that are pipelines; those of files have it, and a DAG in Python may."""
WITHOUT_A_WORD: Final = "It ended without a word: killed, out of memory, with its machine, or never started."
"""What Airflow's DAG processor says of a task whose process cannot."""
