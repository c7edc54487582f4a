"""``mlops spin`` as its process, on a small project, with a real MLflow server and no Airflow."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from project import make_project
from terminal import Terminal

from mlops_provider.experiments.asked import user
from mlops_provider.operators.adopted import pipeline_of

AS_OF = "2024-01-10"
SPUN = f"experiments/{user()}/events.spin"
PROMPT = "(Pdb) "

pytestmark = [pytest.mark.server, pytest.mark.gang]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory, tracking: str) -> Terminal:
    """A project of which two days have features, and nothing is trained."""
    folder = tmp_path_factory.mktemp("spin")
    terminal = Terminal(make_project(folder / "home"), folder / "store", tracking)
    for day in ("2024-01-09", AS_OF):
        done = terminal.mlops("run", "events", "--as-of", day, "--until", "features")
        assert done.returncode == 0, done.stdout
    return terminal


@pytest.fixture
def terminal(prepared: Terminal) -> Iterator[Terminal]:
    """With the recipe as it was, after each test."""
    model = prepared.home / "include/events/model.py"
    before = model.read_text()
    yield prepared
    model.write_text(before)


def edit(terminal: Terminal, line: str) -> None:
    """Have the model's forward pass begin with a line."""
    model = terminal.home / "include/events/model.py"
    head = "def forward(self, features: Tensor) -> Tensor:\n"
    assert head in model.read_text()
    model.write_text(model.read_text().replace(head, f"{head}        {line}\n"))


def committed(terminal: Terminal, folder: str) -> list[str]:
    refs = (terminal.store / folder).rglob("ref.json")
    return sorted(str(ref.parent.relative_to(terminal.store)) for ref in refs)


def spun(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stdout
    assert "already committed" not in done.stdout
    found = re.search(rf"✓ \S+ s  ({SPUN}/\S+)", done.stdout)
    assert found is not None, done.stdout
    return found[1]


def test_a_step_runs_again_and_again_on_what_an_earlier_run_has_made(terminal: Terminal) -> None:
    """Broken: to try a changed line, all steps before it would run, or nothing would, for the work is done."""
    own = f"experiments/{user()}/events"
    before = committed(terminal, own)
    newest = next(place for place in before if "/features/20240110T" in place)
    first = terminal.mlops("spin", "train", "events", "--set", "epochs=1")
    place = spun(first)
    assert f"input     {newest}\n" in first.stdout
    assert "epoch 1/1 done" in first.stdout
    assert place.startswith(f"{SPUN}/train/20240110T000000Z-")
    edit(terminal, "print('the edited line')")
    second = terminal.mlops("spin", "train", "events@2024-01-09", "--set", "train.epochs=1")
    assert "/features/20240109T" in second.stdout
    assert "the edited line" in second.stdout
    assert committed(terminal, SPUN) == [spun(second)], "what was spun before is gone"
    assert committed(terminal, own) == before
    assert committed(terminal, "pipelines") == []

    judged = terminal.mlops("spin", "evaluate", "events", "--input", spun(second), "--json")
    assert json.loads(judged.stdout)["place"].startswith(f"{SPUN}/evaluate/20240109T")
    assert "report file://" in judged.stderr
    assert pipeline_of(spun(second)) is None, "no pipeline takes it over: it is gone at the next spin"


def test_steps_that_need_no_mlflow_do_not_ask_it(terminal: Terminal) -> None:
    away = Terminal(terminal.home, terminal.store, "http://127.0.0.1:9")
    for step in ("ingest", "features"):
        assert spun(away.mlops("spin", step, f"events@{AS_OF}")).startswith(f"{SPUN}/{step}/20240110T")
    for step in ("validate", "train"):
        done = away.mlops("spin", step, "events")
        assert done.returncode == 1
        assert "MLflow at http://127.0.0.1:9 cannot be reached" in done.stdout


def test_the_debugger_opens_where_the_step_fails(terminal: Terminal) -> None:
    """Broken: each guess about a wrong tensor would cost a run."""
    edit(terminal, "raise ValueError(f'{features.shape}')")
    answers = [(PROMPT, "p features.dim() * 21"), (PROMPT, "up"), (PROMPT, "q")]
    code, said = terminal.typed(answers, "spin", "train", "events", "--pdb")
    assert code == 1, said
    assert re.search(r"^(42|63)$", said, re.MULTILINE), said
    assert "model.py" in said
    assert "train: ValueError: torch.Size" in said


def test_a_breakpoint_stops_there_and_the_step_goes_on(terminal: Terminal) -> None:
    edit(
        terminal,
        "if self.training and not globals().setdefault('stopped', False): globals()['stopped'] = True; breakpoint()",
    )
    code, said = terminal.typed(
        [(PROMPT, "p 'of the model', self.layer"), (PROMPT, "c")], "spin", "train", "events", "--pdb"
    )
    assert code == 0, said
    assert "('of the model', Linear(" in said
    assert "✓ " in said


def test_ctrl_c_opens_the_debugger_where_the_step_is(terminal: Terminal) -> None:
    edit(terminal, "import time; print('it hangs', flush=True); time.sleep(600)")
    answers = [("it hangs", "\x03"), (PROMPT, "p features.dim() + 40"), (PROMPT, "q")]
    code, said = terminal.typed(answers, "spin", "train", "events", "--pdb")
    assert code == 1, said
    assert re.search(r"^4[23]$", said, re.MULTILINE), said
    assert "train: stopped by Ctrl-C" in said


def test_a_profile_is_a_flame_graph_of_all_processes(terminal: Terminal, tmp_path: Path) -> None:
    edit(terminal, "sum(number * number for number in range(1_000_000))")
    flame = tmp_path / "flame.svg"
    done = terminal.mlops("spin", "train", "events", "--set", "epochs=1", "--profile", str(flame))
    assert f"flame graph {flame}\n" in done.stdout
    assert spun(done)
    svg = flame.read_text()
    assert "<svg" in svg
    assert "forward (" in svg, "the recipe's own function, in a worker of torchrun"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["evaluate", "events"], "no run of events has done train yet: mlops run events --until train"),
        (
            ["train", "events@2024-01-12"],
            "no run of events has done features for the data interval of 2024-01-12; the newest end at "
            "2024-01-09T00:00+00:00, 2024-01-10T00:00+00:00. To do it: mlops run events --as-of 2024-01-12 "
            "--until features",
        ),
        (["train", "event"], "did you mean events?"),
        (
            ["train", "events", "--set", "epoch=1"],
            "--set train.epoch=1: unknown key 'train.epoch'; did you mean 'epochs'",
        ),
        (["ingest", "events", "--input", "x"], "--input x: ingest takes none; leave it out"),
        (
            ["train", "events@2024-01-10", "--input", "x"],
            "--input x says of which data interval: leave out @2024-01-10",
        ),
        (["train", "events", "--input", "file:///x//y"], "nothing is committed at file:///x//y"),
        (["train", "events", "--input", "../x"], "nothing is committed at ../x"),
        (["train", "events", "--input", "x/y"], "nothing is committed at x/y: give the place of a step's result"),
        (["train", "events", "--pdb"], "--pdb: the debugger needs a terminal, and standard input is none"),
        (["train", "events", "--profile", "no/such/flame.svg"], "--profile no/such/flame.svg: there is no such folder"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_said_with_its_fix(terminal: Terminal, arguments: list[str], message: str) -> None:
    argv, environment = terminal.command("spin", *arguments)
    done = subprocess.run(
        argv, env=environment, cwd=terminal.home, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )  # fmt: skip
    assert done.returncode == 1
    assert message in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_what_a_search_has_found_is_not_passed_over(terminal: Terminal) -> None:
    """Broken: the setting would count for nothing, and nobody would say so."""
    searched = terminal.mlops(
        "run", "events", "--as-of", AS_OF, "--until", "tune", "--name", "searched", "--set",
        "tune={space: {learning_rate: {low: 0.01, high: 0.1}}, sampler: random, trials: 1}", "--set", "train.epochs=1",
    )  # fmt: skip
    assert searched.returncode == 0, searched.stdout
    (study,) = [place for place in committed(terminal, "experiments") if "/events.searched/tune/" in place]
    done = terminal.mlops("spin", "train", "events", "--input", study, "--set", "learning_rate=0.5")
    assert done.returncode == 1
    assert f"--set learning_rate=0.5: what the search {study} has found takes its place" in done.stdout
    features = re.search(r"--input (\S+)", done.stdout)
    assert features is not None
    done = terminal.mlops(
        "spin", "train", "events", "--input", features[1], "--set", "learning_rate=0.5", "--set", "epochs=1"
    )
    assert spun(done)


def test_an_input_of_another_step_is_refused(terminal: Terminal) -> None:
    snapshot = next(place for place in committed(terminal, "experiments") if "/events/ingest/" in place)
    done = terminal.mlops("spin", "train", "events", "--input", snapshot)
    assert done.returncode == 1
    assert f"{snapshot} is not what train takes: that is made by features or tune" in done.stdout
