"""Which champion a run of the rollback's DAG takes back, however late it begins."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from airflow.sdk import DAG, Context

from mlops.contract.refs import ModelVersionRef
from mlops.signing.keys import load_key, make_key
from mlops.signing.seals import Seal, entry_key, seal_key
from mlops_provider.deployment import Deployment
from mlops_provider.exceptions import StepFailedError, StepRetryableError
from mlops_provider.operators import rollback
from mlops_provider.operators.base import StepOperator
from mlops_provider.operators.rollback import TAKEN_BACK, RollbackOperator
from mlops_provider.team_spec import Team, Tenant

ASKED = datetime(2026, 1, 10, 8, tzinfo=UTC)


class World:
    """A model's trail, its champion in MLflow, and the state of the task of one run."""

    def __init__(self, folder: Path, version: ModelVersionRef) -> None:
        self.folder, self.version = folder, version
        self.numbers = 0
        self.champion = version
        self.state: dict[str, Any] = {}

    def promoted(self, version: str, at: datetime) -> None:
        self.numbers += 1
        self.champion = dataclasses.replace(self.version, version=version)
        since = at.isoformat()
        live = {version: {"stage": "production", "since": since}, "99": {"stage": "staging", "since": since}}
        path = self.folder / entry_key(self.version.name, self.numbers)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"at": at.isoformat(), "stages": {"live": live, "former": []}}))

    def run(self, **given: Any) -> str:
        """Run the task; the version that the step is told to take back."""
        with DAG(dag_id="rollback", schedule=None):
            task = RollbackOperator(task_id="rollback", model=self.version.name, **{"why": "complaints", **given})
        store = SimpleNamespace(get=self.state.get, set=self.state.__setitem__)
        run = SimpleNamespace(run_after=ASKED, triggering_user_name="vera")
        task.execute(cast(Context, {"dag_run": run, "run_id": "r", "task_state_store": store, "ti": None}))
        return str(task.upstream["version"])


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version_ref: ModelVersionRef) -> World:
    world = World(tmp_path, version_ref)
    monkeypatch.setenv("AIRFLOW__MLOPS__STORE", f"file://{tmp_path}")
    monkeypatch.setattr(rollback, "champion_of", lambda model, deployment: world.champion)
    monkeypatch.setattr(StepOperator, "execute", lambda self, context: {})
    world.promoted("1", ASKED - timedelta(days=9))
    world.promoted("2", ASKED - timedelta(days=1))
    return world


def test_what_was_in_production_when_it_was_asked_for_is_taken_back(world: World) -> None:
    assert world.run() == "2"
    assert world.state[TAKEN_BACK]["version"] == "2"


@pytest.mark.parametrize("retried", [False, True], ids=["first try", "cleared"])
def test_a_late_run_takes_no_later_champion_back(world: World, retried: bool) -> None:
    """Broken: who clears a failed rollback, weeks later, takes a good champion back in the first asker's name."""
    world.promoted("3", ASKED + timedelta(minutes=1))
    for _ in range(1 + retried):
        with pytest.raises(StepFailedError) as caught:
            world.run()
    assert str(caught.value) == (
        "task 'rollback': version 3 of p was found in production, and version 2 was when this rollback was asked for, "
        "at 2026-01-10 08:00:00 UTC: nothing is done. Who changed it, and why: mlops models history p. To take version "
        "3 back, trigger the DAG again with champion 3"
    )
    assert world.run(champion="3") == "3", "who names it means it"


def test_of_two_who_ask_at_once_one_takes_back(world: World) -> None:
    """Broken: the second run finds what the first has put there, and production goes two versions back."""
    assert world.run() == "2"
    world.promoted("1", ASKED + timedelta(seconds=30))
    world.state = {}  # of the second run
    with pytest.raises(StepFailedError, match="version 1 of p was found in production, and version 2 was when"):
        world.run()


def test_a_retry_goes_on_with_what_the_first_try_found(world: World) -> None:
    """Broken: a try that was killed after the rollback would be refused, or take back the version before."""
    assert world.run() == "2"
    world.promoted("1", ASKED + timedelta(minutes=1))
    assert world.run() == "2"
    assert world.run(champion="2") == "2"


@pytest.mark.parametrize(
    ("change", "given", "said"),
    [
        ({"name": "other"}, {}, "is version 2 of 'other', and it takes back 'p': trigger a new run"),
        ({"version": "1"}, {}, "version 1 of p was found in production, and version 2 was when"),
        ({"version": "1"}, {"champion": "2"}, "version 1 of p is in production, not version 2, which was to be taken"),
        ({"kind": "dataset"}, {}, "in its state is no version"),
    ],
    ids=["another model", "another version", "not the one that was named", "no version"],
)
def test_an_edited_state_takes_nothing_else_back(
    world: World, change: dict[str, str], given: dict[str, str], said: str
) -> None:
    """Broken: who may edit a task's state has an approver's rollback take back what they like."""
    world.run()
    world.state[TAKEN_BACK] = {**world.state[TAKEN_BACK], **change}
    with pytest.raises(StepFailedError, match=said):
        world.run(**given)


def test_a_copy_in_a_folder_below_the_trail_names_no_champion(world: World) -> None:
    """Broken: whoever may write the store has a cleared run take back what was put into production since."""
    world.promoted("3", ASKED + timedelta(minutes=1))
    entry = json.loads((world.folder / entry_key("p", 3)).read_text())
    copy = world.folder / "models/p/audit/zz/000000000001.json"
    copy.parent.mkdir()
    copy.write_text(json.dumps({**entry, "at": (ASKED - timedelta(hours=1)).isoformat()}))
    with pytest.raises(StepFailedError, match="version 3 of p was found in production, and version 2 was when"):
        world.run()


def test_where_entries_are_signed_an_unsigned_one_names_no_champion(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken: the same by an entry that is written where entries are, and that nobody answers for."""
    make_key(tmp_path / "release.pem")
    monkeypatch.setenv("AIRFLOW__MLOPS__RELEASE_KEY", str(tmp_path / "release.pem"))
    monkeypatch.setattr(rollback, "_SIGNED_SECONDS", 0.0)
    with pytest.raises(StepRetryableError, match=rf"is said by {entry_key('p', 2)}, which no trusted key .* sign p 2"):
        world.run()
    # The task that has just made it signs it while the rollback waits.
    monkeypatch.setattr(rollback, "_SIGNED_SECONDS", 60.0)
    digest = hashlib.sha256((world.folder / entry_key("p", 2)).read_bytes()).hexdigest()
    seal = Seal(model="p", number=2, sha256=digest, signed_for="the night", at=ASKED.isoformat())
    path = world.folder / seal_key("p", 2)
    path.parent.mkdir()
    envelope = seal.sealed(load_key(str(tmp_path / "release.pem")))
    signing = threading.Timer(0.5, path.write_bytes, [envelope])
    signing.start()
    assert world.run() == "2"
    signing.join()


def test_a_damaged_trail_is_named(world: World) -> None:
    (world.folder / entry_key("p", 2)).write_text("[]")
    with pytest.raises(StepFailedError, match="the audit trail of 'p' is damaged .* mlops audit verify p"):
        world.run()


def test_the_reason_is_one_printable_line(world: World) -> None:
    """Broken: who triggers the DAG rewrites, by their reason, what `mlops models history` shows."""
    with DAG(dag_id="rollback", schedule=None):
        task = RollbackOperator(task_id="rollback", model="p", why="late\x1b[1A\n flights ")
    task.run_id = "r"
    assert task.config({})["why"] == "late [1A flights"
    for empty in ("", " \n", "\x1b"):
        with pytest.raises(StepFailedError, match="a rollback of 'p' needs a reason, why: it is empty"):
            world.run(why=empty)


def test_an_approver_by_number_is_told_that_a_rollback_knows_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: under FAB nobody of a team can take a bad model back, and the error lists the very people who may."""
    monkeypatch.setattr(rollback, "everybody_is_admin", lambda: False)
    with DAG(dag_id="rollback", schedule=None):
        task = RollbackOperator(task_id="rollback", model="ads_m", why="complaints")

    def said(*approvers: str) -> str:
        given = {"names": "ads_", "store": "s3://ads/a", "tracking_uri": "http://ads", "approvers": [*approvers]}
        tenant = Tenant(name="ads", teams={"ads": Team.model_validate(given)})
        with pytest.raises(StepFailedError) as caught:
            task._check_person("vera", cast(Deployment, SimpleNamespace(tenant=tenant)))
        return str(caught.value)

    assert said("7", "otto") == (
        "task 'rollback': 'vera' is no approver of team 'ads', which has 7, otto. A rollback knows user names only: "
        "list the name beside the number in teams.ads.approvers of [mlops] teams_file"
    )
    assert said("otto") == "task 'rollback': 'vera' is no approver of team 'ads', which has otto"
