"""``mlops diff``, as its process."""

from __future__ import annotations

from typing import Any

from mlflow import MlflowClient

from mlops.contract.rest import DifferencePart, TrainingDifference


def parts_of(document: str) -> dict[str, DifferencePart]:
    return {part.name: part for part in TrainingDifference.model_validate_json(document).parts}


def test_each_part_that_differs_is_shown_and_the_others_are_said_to_be_equal(recipe: Any) -> None:
    """Broken: who compares two models would look for the reason in the wrong place, or miss it."""
    first = recipe.train(recipe.features())
    version = recipe.register(first)
    recipe.model.write_text(recipe.model.read_text().replace("nn.Tanh()", "nn.ReLU()"))
    second = recipe.train(first.parent, key="second", learning_rate=0.02)

    done = recipe.mlops("diff", version, second.tracking_run)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "-    return nn.Sequential(first, nn.Tanh(), nn.Dropout(0.1), last, nn.Flatten(-2))" in done.stdout
    assert "+    return nn.Sequential(first, nn.ReLU(), nn.Dropout(0.1), last, nn.Flatten(-2))" in done.stdout
    assert "data        equal: snapshot toy@" in done.stdout
    assert "environment equal: " in done.stdout

    parts = parts_of(recipe.mlops("diff", version, second.tracking_run, "--json").stdout)
    assert [name for name, part in parts.items() if part.is_equal] == ["data", "environment"]
    (rate,) = parts["parameters"].differences
    assert (rate.what, rate.before, rate.after) == ("train.learning_rate", "0.01", "0.02")
    assert {"commit", "patch of it", "files patched"} == {each.what for each in parts["code"].differences}
    assert "validation ndcg@10" in {each.what for each in parts["metrics"].differences}


def test_other_data_is_told_by_days_and_rows(registered: Any) -> None:
    recipe, version = registered
    other = recipe.train(recipe.features("other", seed=1), key="other")
    parts = parts_of(recipe.mlops("diff", version, other.tracking_run, "--json").stdout)
    whats = {each.what for each in parts["data"].differences}
    assert {"snapshot", "rows", "rows of 2013-01-09", "rows of 2013-01-16", "fitted state"} <= whats
    assert parts["parameters"].is_equal
    assert parts["code"].is_equal


def test_a_model_does_not_differ_from_itself(registered: Any) -> None:
    recipe, version = registered
    done = recipe.mlops("diff", version, version)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == [
        "data", "code", "environment", "parameters", "metrics",
    ]  # fmt: skip
    assert all("equal: " in line for line in done.stdout.splitlines())


def test_a_version_does_not_differ_from_its_own_run(registered: Any) -> None:
    """Broken: that a version was evaluated, and a run never is, would pass for another model."""
    recipe, version = registered
    client = MlflowClient(tracking_uri=recipe.project.tracking_uri)
    run = client.get_model_version(*version.split("/")).run_id
    for pair in ((version, run), (run, version)):
        done = recipe.mlops("diff", *pair)
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"; only {version} has an evaluation" in done.stdout


def test_what_is_no_training_is_said(registered: Any) -> None:
    recipe, version = registered
    done = recipe.mlops("diff", version, "0" * 32)
    assert done.returncode == 2
    assert "cannot read run" in done.stderr
