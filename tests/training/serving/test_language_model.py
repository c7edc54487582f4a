from __future__ import annotations

from pathlib import Path
from typing import Any

import corpus
import numpy as np
import polars as pl
import pytest
import requests
import services
from turns import by_turns, on_turn

from mlops.contract.refs import ModelVersionRef, ReportRef
from mlops.features.fitted import held_out
from mlops.predictor.packing import open_checkpoint

ASK = """
import sys

import mlflow
import pandas as pd

model = mlflow.pyfunc.load_model(sys.argv[1])
model.predict(pd.read_parquet(sys.argv[2])).to_parquet(sys.argv[3])
import mlops
print(mlops.__path__[0])
print(model.metadata.signature.inputs.to_json())
print(len(model.predict(model.input_example)))
"""


@pytest.mark.parametrize("name", by_turns(["FEATURES", "CHARACTERS"], 2))
def test_what_is_served_is_what_was_evaluated(
    project: Any, run_step: Any, config: Any, elsewhere: Any, tmp_path: Path, name: str
) -> None:
    """Broken: a served model would find another perplexity than the one it was let into production for."""
    corpus.write_project(project.home, 80)
    checkpoint = corpus.trained(project, run_step, config, "first", name)
    report = corpus.judged(project, run_step, "first", checkpoint)
    assert isinstance(report, ReportRef), report
    version = corpus.promoted(project, run_step, report)
    assert isinstance(version, ModelVersionRef), version
    rows = held_out(project.store, version.parent.parent.parent)
    scored = open_checkpoint(project.store, checkpoint, tmp_path).score(rows)
    files = [str(tmp_path / each) for each in ("rows", "answers")]
    # Another order, and columns that are no business of the model's.
    order = np.random.default_rng(0).permutation(rows.height)
    rows[order].with_columns(note=pl.lit("x")).write_parquet(files[0])
    said = elsewhere(ASK, f"models:/{version.name}/{version.version}", *files).splitlines()
    assert said[-3].endswith("library.zip/mlops"), said
    assert '"text"' in said[-2]
    assert "path" not in said[-2]
    assert said[-1] == "5"
    answer = pl.read_parquet(files[1])
    assert answer.columns == ["loss", "num_tokens", "perplexity"]
    np.testing.assert_array_equal(answer["num_tokens"], scored.predictions.labels[order])
    losses = scored.predictions.predicted.astype(np.float64) / scored.predictions.labels
    np.testing.assert_array_equal(answer["loss"], losses[order])
    np.testing.assert_array_equal(answer["perplexity"], np.exp(losses)[order])
    whole = np.exp((answer["loss"] * answer["num_tokens"]).sum() / answer["num_tokens"].sum())
    assert whole == pytest.approx(report.metrics["perplexity"], rel=1e-9)


@on_turn(1, 2)
def test_mlflows_own_server_takes_documents(project: Any, run_step: Any, config: Any) -> None:
    """Broken: text could not be asked about by hand, or a wrong request would look like a fault of the server."""
    corpus.write_project(project.home, 80)
    report = corpus.judged(project, run_step, "first", corpus.trained(project, run_step, config, "first", epochs=1))
    version = corpus.promoted(project, run_step, report)
    with services.model_server(f"models:/{version.name}/{version.version}", project.tracking_uri) as address:

        def ask(*texts: Any) -> tuple[int, Any]:
            body = {"dataframe_records": [{"text": text} for text in texts]}
            answer = requests.post(f"{address}/invocations", json=body, timeout=60)
            return answer.status_code, answer.json()

        status, answer = ask("left = left + 1\n", "total = count + 7\n")
        assert status == 200, answer
        assert [row["num_tokens"] for row in answer["predictions"]] == [17, 19]
        assert ask("total = count + 7\n")[1]["predictions"][0] == answer["predictions"][1]
        for wrong, message in {
            None: "'text' of 1 of 1 documents is empty",
            "": "documents is empty",
            7: "text",
        }.items():
            status, answer = ask(wrong)
            assert status == 400, (wrong, answer)
            assert message in answer["message"], answer
