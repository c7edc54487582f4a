"""The DAG ``NAME.experiments``, in which Airflow tries a pipeline out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, get_args

from airflow.sdk import DAG, Param

from mlops.contract.refs import VERSION_PATTERN
from mlops.contract.rest import MOST_SEEDS, Priority
from mlops.contract.section import DIGEST_PATTERN, EXPERIMENT_NAME_PATTERN
from mlops.contract.step import EXPERIMENT_STEPS
from mlops_provider.deployment import tenant_of
from mlops_provider.experiments.names import NOTED, RECIPES, dag_id_of
from mlops_provider.experiments.operator import ExperimentOperator
from mlops_provider.operator_keys import PIPELINE_TAG
from mlops_provider.spec import Pipeline

TASK: Final = "experiment"
_BY_REST: Final = "Of requests by REST: leave them empty"
_FENCE: Final = "```"


def build_experiments_dag(pipeline: Pipeline, file: Path) -> DAG:
    """
    :param file: of the pipeline
    """
    with DAG(
        dag_id=dag_id_of(pipeline.pipeline),
        description=f"Try {pipeline.pipeline} out with other settings: nothing is registered, nor goes live",
        schedule=None,
        start_date=pipeline.start,
        catchup=False,
        is_paused_upon_creation=False,  # nothing runs but what somebody asks for
        default_args=pipeline.default_args(),
        auto_register=False,  # as in build_dag
        tags=[PIPELINE_TAG, "experiments", *pipeline.tags],
        params=parameters(pipeline),
    ) as dag:
        ExperimentOperator(
            task_id=TASK,
            file=str(file),
            team=pipeline.team,
            doc_md=_shown(file.read_text(encoding="utf-8")),
            **tenant_of(pipeline.team).slots(),
        )
    return dag


def parameters(pipeline: Pipeline) -> Mapping[str, Any]:
    """The parameters of a run, as :class:`mlops_provider.experiments.request.Request` reads them."""
    return {
        "settings": Param(
            {}, type="object", description='Other values for settings: {"train.learning_rate": 0.0003, "tune": null}'
        ),
        "as_of": Param(
            None,
            type=["null", "string"],
            description="Of the data: the newest interval that had ended by then, such as 2013-02-09; now if empty",
        ),
        "dataset": Param(
            None,
            type=["null", "string"],
            pattern=VERSION_PATTERN,
            description="Start from this snapshot, by the beginning of its version, in place of one of as_of",
        ),
        "until": Param(EXPERIMENT_STEPS[-1], enum=list(EXPERIMENT_STEPS), description="The last step"),
        "seeds": Param(
            1, type="integer", minimum=1, maximum=MOST_SEEDS, description="Train and evaluate with so many seeds"
        ),
        "sample": Param(
            None,
            type=["null", "number"],
            exclusiveMinimum=0,
            maximum=1,
            description="Train on a share of the samples, such as 0.1",
        ),
        "name": Param(
            None,
            type=["null", "string"],
            pattern=EXPERIMENT_NAME_PATTERN,
            description="Keeps the results apart from those of other names",
        ),
        "priority": Param(
            "normal", enum=list(get_args(Priority)), description="Where more wait than may run: low ones begin last"
        ),
        RECIPES: Param(
            {},
            type="object",
            additionalProperties={"type": "string", "pattern": DIGEST_PATTERN},
            description="Digests of code that was sent, by the recipe",
            section=_BY_REST,
        ),
        **{
            name: Param(None, type=["null", "string"], description=said, section=_BY_REST)
            for name, said in NOTED.items()
        },
    }


def _shown(text: str) -> str:
    """The pipeline's file, as the task's page shows it."""
    return f"What an experiment starts from:\n\n{_FENCE}yaml\n{text.rstrip()}\n{_FENCE}\n"


def text_of(doc_md: str) -> str:
    """The pipeline's file, out of the task's page."""
    lines = doc_md.split("\n")
    first = lines.index(f"{_FENCE}yaml")
    return "\n".join(lines[first + 1 : -2])
