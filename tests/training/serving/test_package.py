from __future__ import annotations

import dataclasses
import io
import json
import re
import zipfile
from collections.abc import Iterable
from importlib.metadata import distribution, packages_distributions
from pathlib import Path
from typing import Any

import corpus
import polars as pl
import pytest
from mlflow import MlflowClient
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from mlops.contract.refs import CheckpointRef, ModelVersionRef, digest_of
from mlops.contract.step import BadDataError, Failure
from mlops.serving.archive import unarchived
from mlops.serving.library import LOCK, closure, imports_of, packed
from mlops.serving.model import ServedModel
from mlops.serving.package import package, served_example
from mlops.serving.verified_loading import files_of
from mlops.store import Store
from mlops.tracking.run import MODEL_PACKAGE

LAZY = """

class Lazy(nn.Sequential):
    def forward(self, features):
        if not self.training:
            import optuna
        return super().forward(features)


def build_lazy(config):
    return Lazy(build_model(config))
"""


def versions(project: Any) -> list[Any]:
    return MlflowClient(tracking_uri=project.tracking_uri).search_model_versions(f"name = '{project.pipeline}'")


def packed_model(project: Any, checkpoint: Any, scratch: Path) -> Path:
    scratch.mkdir(exist_ok=True)
    return package(project.store, checkpoint, served_example(project.store, checkpoint, scratch), scratch)


def test_one_content_is_stored_once(project: Any, toy_checkpoint: Any, register: Any) -> None:
    """Broken: each report on one training, and each retry, would store the whole model again."""
    checkpoint = toy_checkpoint()
    first, second = register(checkpoint), register(checkpoint, reason="Judged again.")
    assert (first.version, second.version) == ("1", "2")
    third = register(toy_checkpoint(key="again", seed=8))
    assert third.version == "3"
    sources = [version.source for version in sorted(versions(project), key=lambda version: int(version.version))]
    assert sources[0] == sources[1] != sources[2]


def test_equal_checkpoints_give_equal_bytes(project: Any, toy_checkpoint: Any, tmp_path: Path) -> None:
    """Broken: nothing would ever be shared, and a retry would store what an attempt before it has stored."""
    digests = set()
    for name in ("one", "two"):
        digests.add(digest_of(files_of(packed_model(project, toy_checkpoint(), tmp_path / name))))
    assert len(digests) == 1


@pytest.mark.parametrize("where", ["../../evil", "{outside}", "library.zip", "", "data"])
def test_a_package_writes_its_weights_into_its_own_folder(
    version_ref: ModelVersionRef, tmp_path: Path, where: str
) -> None:
    """Broken: who may write the store has a step, which holds the logins that release, write a file of their choice."""
    store, outside = Store(f"file://{tmp_path}/store"), tmp_path / "outside/evil"
    outside.parent.mkdir()
    place, buffer = where.format(outside=outside), io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, text in {"library.zip": "code", "data/MLmodel": "{}", "weights.path": place}.items():
            archive.writestr(name, text)
    weights = {"weights": store.put_artifact("train", "weights.pt", b"weights")}
    package = {MODEL_PACKAGE: store.put_artifact("evaluate", "model_package.zip", buffer.getvalue())}
    checkpoint = dataclasses.replace(version_ref.ancestor(CheckpointRef), artifacts=weights)
    report = dataclasses.replace(version_ref.parent, artifacts=package, parent=checkpoint)
    with pytest.raises(BadDataError) as caught:
        unarchived(store, report, tmp_path / "scratch/of_step")
    assert f"{package[MODEL_PACKAGE].key} in {store.uri} puts its weights at {place!r}" in str(caught.value)
    assert not list(tmp_path.rglob("evil"))


def test_a_damaged_model_is_not_served(project: Any, toy_checkpoint: Any, tmp_path: Path) -> None:
    """Broken: a bit that flips on the way to a server, or at rest, would be other scores that nobody notices."""
    folder = packed_model(project, toy_checkpoint(), tmp_path) / "data/model"
    ServedModel(folder)
    files = sorted(folder.iterdir())
    assert {path.suffix for path in files} == {".json", ".pt", ".zip"}
    for path in files:
        whole = path.read_bytes()
        middle = len(whole) // 2
        for damaged in (whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :], whole[:-1], None):
            path.unlink()
            if damaged is not None:
                path.write_bytes(damaged)
            with pytest.raises(BadDataError, match=f"{path.name} is not what was registered"):
                ServedModel(folder)
            path.write_bytes(whole)
    ServedModel(folder)


def test_the_number_says_what_a_caller_has_to_change(project: Any, toy_checkpoint: Any, register: Any) -> None:
    """Broken: a model that takes other columns would pass for a mere retraining, or every night for a new one."""
    model = project.home / "include/toy/model.py"
    assert register(toy_checkpoint()).semantic_version == "1.0.0"
    assert register(toy_checkpoint(key="retrained", seed=8)).semantic_version == "1.0.1"
    assert register(toy_checkpoint(key="wider", model_args={"hidden": 9})).semantic_version == "1.1.0"
    model.write_text(model.read_text().replace("nn.Tanh()", "nn.ReLU()"))
    assert register(toy_checkpoint(key="new code", model_args={"hidden": 9})).semantic_version == "1.2.0"
    more = [pl.lit("x").alias("note")]
    version = register(toy_checkpoint(key="new schema", columns=more, model_args={"hidden": 9}))
    assert version.semantic_version == "2.0.0"
    binary = register(toy_checkpoint(key="new signature", binary=True, columns=more))
    assert binary.semantic_version == "3.0.0"
    assert {entry.tags["mlops.semantic_version"] for entry in versions(project)} >= {"1.2.0", "2.0.0", "3.0.0"}


def test_what_a_server_has_to_install_is_pinned_as_here(project: Any, toy_checkpoint: Any, tmp_path: Path) -> None:
    """Broken: another version of a library would make other features of a row, or the model would not load."""
    folder = packed_model(project, toy_checkpoint(), tmp_path)
    pinned = (folder / "requirements.txt").read_text().split()
    assert {line.partition("==")[0] for line in pinned} == {
        "mlflow", "narwhals", "numpy", "pandas", "polars", "pyarrow", "pydantic",
        "pydantic-core", "torch", "zstandard"
    }  # fmt: skip
    locked = set(re.findall(r"^[\w.-]+==[^\s;]+", LOCK.read_text(), re.MULTILINE))
    assert [line for line in pinned if line not in locked and not line.startswith("torch==")] == []
    assert "python: 3.11" in (folder / "python_env.yaml").read_text()


ASK_WITHOUT = """
import json
import sys
from importlib.machinery import PathFinder


class OnlyRequired(PathFinder):
    away = set(json.loads(sys.argv[2]))

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in cls.away else super().find_spec(name, path, target)


sys.meta_path[sys.meta_path.index(PathFinder)] = OnlyRequired
import mlflow

model = mlflow.pyfunc.load_model(sys.argv[1])
print(len(model.predict(model.input_example)))
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


@pytest.mark.parametrize("language", [False, True], ids=["rows", "documents"])
def test_what_is_pinned_is_all_that_a_server_needs(
    project: Any, toy_checkpoint: Any, run_step: Any, config: Any, elsewhere: Any, tmp_path: Path, language: bool
) -> None:
    """Broken: a server that has what requirements.txt names would lack something, and find out by a request."""
    if language:
        corpus.write_project(project.home)
        checkpoint = corpus.trained(project, run_step, config, "train", epochs=1)
    else:
        # A library of the recipe's own choice, which only a request needs.
        model = project.home / "include/toy/model.py"
        model.write_text(model.read_text() + LAZY)
        checkpoint = toy_checkpoint(model="include.toy.model:build_lazy")
    folder = packed_model(project, checkpoint, tmp_path)
    required = with_what_they_require((folder / "requirements.txt").read_text().split())
    installed = {
        name: {canonicalize_name(each) for each in distributions}
        for name, distributions in packages_distributions().items()
    }
    away = sorted(name for name, distributions in installed.items() if not distributions & required)
    assert {"feast", "obstore", "pytest"} <= set(away)
    num_answers, imported = elsewhere(ASK_WITHOUT, str(folder), json.dumps(away)).splitlines()
    assert int(num_answers) > 0
    assert not set(json.loads(imported)) & set(away)
    assert ("optuna" in json.loads(imported)) != language


def with_what_they_require(requirements: Iterable[str]) -> set[str]:
    """Names of distributions that pip would install, by the metadata of those that are installed here."""
    found: set[tuple[str, str]] = set()
    todo = [Requirement(each) for each in requirements]
    while todo:
        requirement = todo.pop()
        for extra in {"", *requirement.extras}:
            key = canonicalize_name(requirement.name), extra
            if key in found:
                continue
            found.add(key)
            inner = [Requirement(each) for each in distribution(requirement.name).requires or ()]
            todo += [each for each in inner if each.marker is None or each.marker.evaluate({"extra": extra})]
    return {name for name, _ in found}


def test_only_what_serving_imports_travels() -> None:
    """Broken: each model would carry the whole library, or lack a part that is imported late."""
    modules, _ = closure({"mlops.serving.model"})
    assert {"mlops.serving.model", "mlops.features.applied", "mlops.contract.step"} <= modules.keys()
    assert not [name for name in modules if name.startswith(("mlops.steps", "mlops.evaluation"))]
    with zipfile.ZipFile(io.BytesIO(packed(modules))) as archive:
        assert {"mlops/__init__.py", "mlops/serving/model.py", "mlops/contract/refs.py"} <= set(archive.namelist())


def test_a_public_name_travels_with_its_module() -> None:
    """Broken: a recipe that imports from the public surface alone could not be imported where it is served."""
    modules, _ = closure({"mlops", "mlops.FeatureSet", "mlops.last_known"})
    assert {"mlops", "mlops.features.feature_set", "mlops.features.point_in_time"} <= modules.keys()
    assert "mlops.program" not in modules


@pytest.mark.parametrize(
    "text",
    [
        "import mlops\nFEATURES = mlops.FeatureSet(derived=mlops.last_known())",
        "import mlops as ml\ndef make():\n    return ml.FeatureSet(derived=ml.last_known())",
        "def make():\n    import mlops.client\n    return mlops.FeatureSet(derived=mlops.last_known())",
        "from mlops import *\nFEATURES = FeatureSet(derived=last_known())",
    ],
    ids=["package", "another name", "in a function", "star"],
)
def test_a_public_name_travels_however_the_package_is_imported(text: str) -> None:
    """Broken: the model would be registered, and no server could load it: no module mlops.features.feature_set."""
    modules, _ = closure(imports_of(text, lazily=True))
    assert {"mlops", "mlops.features.feature_set", "mlops.features.point_in_time"} <= modules.keys()
    assert "mlops.program" not in modules


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import beside\n", "imports 'beside' from"),
        ("import os\nif 'step' in os.environ.get('TOY', ''): import not_there\n", "No module named 'not_there'"),
        ("", "the model is too small for 9"),
    ],
    ids=["a file beside the recipes", "a package that is not there", "rows that it cannot score"],
)
def test_a_model_that_no_server_could_run_is_not_registered(
    project: Any, toy_checkpoint: Any, register: Any, monkeypatch: pytest.MonkeyPatch, code: str, said: str
) -> None:
    """Broken: the failure would be found by whoever deploys it, with a version that says all is well."""
    (project.home / "beside.py").write_text("")
    model = project.home / "include/toy/model.py"
    failing = model.read_text().replace("    return nn.Sequential(first,", "    return Picky(first,") + (
        "\n\nclass Picky(nn.Sequential):\n"
        "    def forward(self, features):\n"
        "        if features.shape[0] < 9 and not self.training:\n"
        "            raise RuntimeError('the model is too small for 9')\n"
        "        return super().forward(features)\n"
    )
    model.write_text(code + (model.read_text() if code else failing))
    checkpoint = toy_checkpoint()
    monkeypatch.setenv("TOY", "step")
    failure = register(checkpoint)
    assert isinstance(failure, Failure), failure
    assert not failure.retryable
    assert said in failure.message
    assert versions(project) == []


def test_an_import_that_may_fail_is_no_requirement(project: Any, toy_checkpoint: Any, register: Any) -> None:
    """Broken: a recipe could not use a faster library where there is one."""
    model = project.home / "include/toy/model.py"
    model.write_text("try:\n    import not_there\nexcept ImportError:\n    pass\n" + model.read_text())
    assert isinstance(register(toy_checkpoint()), ModelVersionRef)
