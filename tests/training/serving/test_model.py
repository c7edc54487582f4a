from __future__ import annotations

import io
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import requests
import services
import toy_model
from PIL import Image as Pillow
from turns import on_turn

from mlops.contract.refs import ModelVersionRef
from mlops.features.fitted import held_out
from mlops.features.images import Image
from mlops.predictor.packing import open_checkpoint
from mlops.serving.archive import unarchived

ASK = """
import sys

import mlflow
import pandas as pd

model = mlflow.pyfunc.load_model(sys.argv[1])
rows = pd.read_parquet(sys.argv[2])
model.predict(rows).to_parquet(sys.argv[3])
model.predict(rows.to_dict("records")).to_parquet(sys.argv[4])
import mlops
print(mlops.__path__[0])
print(model.metadata.signature.inputs.to_json())
print(model.input_example is not None and model.predict(model.input_example).score.notna().any())
"""


def test_requests_at_once_get_the_answers_that_they_get_alone(
    project: Any, toy_checkpoint: Any, tmp_path: Path
) -> None:
    """Broken: MLflow's server asks from several threads, and one of them puts the model back into training."""
    checkpoint = toy_checkpoint(binary=True)
    model = open_checkpoint(project.store, checkpoint, tmp_path)
    requests = [part.drop("label") for part in held_out(project.store, checkpoint.parent).head(8).iter_slices(2)]
    alone = [model.answer(request)["score"].tolist() for request in requests]

    def ask(number: int) -> bool:
        return all(model.answer(requests[number])["score"].tolist() == alone[number] for _ in range(100))

    with ThreadPoolExecutor(len(requests)) as pool:
        assert all(pool.map(ask, range(len(requests))))


@pytest.mark.parametrize("binary", [False, True], ids=["ranking", "binary"])
def test_a_machine_without_our_files_gives_the_scores_of_the_evaluation(
    project: Any, toy_checkpoint: Any, register: Any, elsewhere: Any, tmp_path: Path, binary: bool
) -> None:
    """Broken: what is served would not be what was measured, or only where our checkout is."""
    checkpoint = toy_checkpoint(binary=binary)
    version = register(checkpoint)
    assert isinstance(version, ModelVersionRef), version
    expected = open_checkpoint(project.store, checkpoint, tmp_path).score(held_out(project.store, checkpoint.parent))
    rows = held_out(project.store, checkpoint.parent).drop("label")
    files = [str(tmp_path / name) for name in ("rows", "frame", "records")]
    # Another order than the feature set's, and a column that it does not know.
    order = np.random.default_rng(0).permutation(rows.height)
    rows[order].with_columns(note=pl.lit("x")).write_parquet(files[0])
    said = elsewhere(ASK, f"models:/{version.name}/{version.version}", *files).splitlines()
    assert said[-3].endswith("library.zip/mlops"), said
    assert said[-1] == "True"
    scores = np.full(rows.height, np.nan, np.float32)
    scores[expected.rows] = expected.predictions.predicted
    for file in files[1:]:
        answer = pl.read_parquet(file)
        np.testing.assert_array_equal(answer["score"].cast(pl.Float32).to_numpy(), scores[order])
        assert answer.columns == (["score", "probability"] if binary else ["score"])
    assert np.isnan(scores).any() != binary, "queries of one item cannot be ranked"


def ask(address: str, body: Mapping[str, Any]) -> tuple[int, Any]:
    answer = requests.post(f"{address}/invocations", json=body, timeout=60)
    return answer.status_code, answer.json()


@on_turn(0, 2)
def test_mlflows_own_server_takes_raw_rows(
    project: Any, toy_checkpoint: Any, register: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken: a request could not be made by hand, or a wrong one would look like a fault of the server."""
    pixel = Image("icon", height=1, width=1, missing="indicator")
    buffer = io.BytesIO()
    Pillow.new("L", (1, 1), 200).save(buffer, "PNG")
    text = toy_model.FEATURES.replace("transforms=[", f"transforms=[{pixel!r},")
    monkeypatch.setattr(toy_model, "FEATURES", text.replace("Vocabulary\n", "Vocabulary, Image\n"))
    icon = pl.when(pl.col("seats") > 4).then(pl.lit(buffer.getvalue())).alias("icon")
    checkpoint = toy_checkpoint(binary=True, columns=[icon])
    version = register(checkpoint)
    assert isinstance(version, ModelVersionRef), version
    scored = open_checkpoint(project.store, checkpoint, tmp_path).score(held_out(project.store, checkpoint.parent))
    held = held_out(project.store, checkpoint.parent)[scored.rows].drop("label")
    document = json.loads(held.with_columns(pl.col("icon").bin.encode("base64")).write_json())
    # As a caller in another language writes them.
    good = [{**row, "at": row["at"].replace(" ", "T").removesuffix("Z").split("+")[0] + "Z"} for row in document]
    assert any(row["seats"] is None for row in good)
    assert any(row["weekend"] is None for row in good)
    assert len({row["icon"] for row in good}) == 2, "an icon, and none"
    uri = f"models:/{version.name}/{version.version}"
    with services.model_server(uri, project.tracking_uri) as address:
        status, answer = ask(address, {"dataframe_records": good})
        assert status == 200, answer
        np.testing.assert_array_equal(
            np.float32([row["score"] for row in answer["predictions"]]), scored.predictions.predicted
        )
        names = list(good[0])
        split = {"columns": names, "data": [[row[name] for name in names] for row in good]}
        assert ask(address, {"dataframe_split": split}) == (200, answer)
        unknown = {**dict.fromkeys(names), "at": good[0]["at"], "day": good[0]["day"], "item": 0}
        assert ask(address, {"dataframe_records": [unknown]})[0] == 200
        assert ask(address, {"dataframe_records": [{**good[0], "day": "9999-12-31"}]})[0] == 200
        example = unarchived(project.store, version.parent, tmp_path) / "serving_input_example.json"
        headers = {"Content-Type": "application/json"}
        found = requests.post(f"{address}/invocations", data=example.read_bytes(), headers=headers, timeout=60)
        assert found.status_code == 200, found.text

        nameless = {name: value for name, value in good[0].items() if name != "item"}
        status, twins = ask(address, {"dataframe_records": [nameless, nameless]})
        assert (status, twins["predictions"]) == (200, [answer["predictions"][0]] * 2), "no key, and none is needed"

        for wrong, value, message in (
            ("seats", "two", "Int64"),
            ("weekend", "yes", "Boolean"),
            ("at", "2013-01-17T05:00:00", "without an offset"),
            ("day", "yesterday", "day"),
            ("day", "03/04/2013", "not ISO 8601"),
            ("day", "now", "not ISO 8601"),
            ("day", 15000, "Date"),
            ("good", "high", "good"),
            ("city", 7, "String"),
            ("icon", "icon.png", "not base64"),
        ):
            status, answer = ask(address, {"dataframe_records": [{**good[0], wrong: value}]})
            assert status == 400, (wrong, answer)
            assert message in answer["message"], answer
            assert "Traceback" not in json.dumps(answer), answer
        lacking = {name: value for name, value in good[0].items() if name != "seats"}
        status, answer = ask(address, {"dataframe_records": [lacking]})
        assert status == 400, answer
        assert "seats" in answer["message"]
        print(answer)
