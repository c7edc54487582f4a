"""The launcher of a package that is not part of the project, installed as a user would."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from other_packages import REPOSITORY, installed, missing_on

from mlops.contract.refs import DatasetRef
from mlops.contract.section import SpecError
from mlops_provider.launcher_names import check_settings
from mlops_provider.launchers.base import Launcher, StepTask
from mlops_provider.launchers.named import launcher_class
from mlops_provider.operators.ingest import IngestOperator
from mlops_provider.spec_file import load_pipeline
from mlops_provider.testing.launchers import LauncherConformance, deployment_of, launch, make_home


@pytest.fixture(scope="module", autouse=True)
def _installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with installed("mlops-nice", tmp_path_factory.mktemp("site")):
        yield


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_home(tmp_path_factory.mktemp("home") / "project", REPOSITORY)


def nice(home: Path, **settings: int) -> Launcher:
    task = StepTask(dag_id="events", run_id="r", task_id="ingest", settings=settings)
    return launcher_class("nice").of(task, deployment_of(home))


@pytest.fixture
def launcher(home: Path) -> Launcher:
    return nice(home)


@pytest.mark.gang
class TestNiceLauncher(LauncherConformance):
    pass


@pytest.mark.gang
def test_its_settings_reach_the_step(home: Path) -> None:
    lines: list[str] = []
    asked = launch(home, "import os; print('niceness', os.nice(0))", "niceness")
    outcome = nice(home, niceness=7).run(asked, lines.append)
    assert isinstance(outcome.result, DatasetRef), outcome
    assert f"niceness {os.nice(0) + 7}" in lines


def test_its_settings_are_checked_where_the_task_is_made() -> None:
    common = {"task_id": "ingest", "pipeline": "p", "sources": {"a": {"path": "a.csv"}}, "window": 28}
    common["event_time"] = "at"
    operator = IngestOperator(**common, launcher="nice", launcher_settings={"niceness": 3})
    assert operator.launcher_settings == {"niceness": 3}
    with pytest.raises(SpecError, match=r"task 'ingest': launcher_settings: niceness must be <= 19, got 40"):
        IngestOperator(**common, launcher="nice", launcher_settings={"niceness": 40})
    with pytest.raises(SpecError, match="unknown key 'nicenes'; did you mean 'niceness'"):
        IngestOperator(**common, launcher="mlops_nice:NiceLauncher", launcher_settings={"nicenes": 4})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("launcher: nicer", r"launcher must be one of process, pod, nice \(did you mean 'nice'\?\).*got 'nicer'"),
        ("launcher: nice\nlauncher_settings: {train: {niceness: -1}}", "train: niceness must be >= 0, got -1"),
        ("launcher: pod\nlauncher_settings: {all: {gpus: 1}}", "launcher 'pod' takes none, use pods; leave out gpus"),
        ("launcher_settings: {all: {niceness: 1}}", "say whose settings these are: give a launcher, too"),
    ],
)
def test_a_mistake_in_a_pipeline_is_said_where_it_stands(tmp_path: Path, text: str, message: str) -> None:
    events = (REPOSITORY / "tests/fixtures/events/events.pipeline.yaml").read_text()
    file = tmp_path / "events.pipeline.yaml"
    file.write_text(f"{events}\n{text}\n")
    with pytest.raises(SpecError, match=message) as raised:
        load_pipeline(file)
    assert f"{file.name}:{len(events.splitlines()) + 1 + len(text.splitlines())}:" in str(raised.value)


def test_one_that_is_not_there_is_named_with_the_fix() -> None:
    with pytest.raises(SpecError, match="launcher 'nowhere:Launcher': cannot import nowhere:Launcher: No module"):
        check_settings("nowhere:Launcher", {"a": 1}, "here")


def test_one_that_fails_when_it_is_imported_is_named_with_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not an error of its own kind: one broken package would take all DAGs of a folder out of service."""
    (tmp_path / "broken_launcher.py").write_text("raise RuntimeError('no licence')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SpecError, match="cannot import broken_launcher:Launcher: RuntimeError: no licence"):
        check_settings("broken_launcher:Launcher", {"a": 1}, "here")


def test_what_is_no_launcher_is_refused() -> None:
    with pytest.raises(SpecError, match="json:JSONDecoder is none, it has no section, of, run, cancel"):
        check_settings("json:JSONDecoder", {"a": 1}, "here")


def test_the_page_shows_this_package() -> None:
    assert missing_on("launcher.md", "mlops-nice", ["pyproject.toml", "mlops_nice.py", "test_mlops_nice.py"]) == []
