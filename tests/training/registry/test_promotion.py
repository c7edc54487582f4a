"""The stages of a model's versions, with a real MLflow server: what is refused, what is recorded, what comes back."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests

from mlops.contract.stage_moves import (
    CanaryBusyError,
    CanaryMissingError,
    CanaryNotOverError,
    ChampionChangedError,
    TakenBackError,
)
from mlops.contract.step import BadConfigError, StepError
from mlops.registry.audit import AuditError
from mlops.registry.consent import ApprovalMissingError
from mlops.registry.promotion import Promotion
from mlops.registry.trail_verification import TrailCheck
from mlops.registry.transitions import AliasMovedError, Author
from mlops.tracking.connection import connect
from mlops.tracking.model_registry import ModelRegistry

from .conftest import BY, consent_to, signed_decision, tags

NewVersion = Callable[..., str]


def actions(promotion: Promotion) -> list[str]:
    return [entry.action for entry in promotion.trail.newest_first()][::-1]


def test_each_stage_has_its_alias_and_its_tag(promotion: Promotion, new_version: NewVersion) -> None:
    first, second = new_version(), new_version()
    assert promotion.registry.aliases() == {"staging": second}
    promotion.promote(first, BY, judged_against=None)
    assert promotion.registry.aliases() == {"champion": first}
    assert tags(promotion) == {first: "production", second: "archived"}
    third = new_version()
    promotion.canary(third, BY)
    assert promotion.registry.aliases() == {"champion": first, "canary": third}
    promotion.promote(third, BY, judged_against=first)
    assert promotion.registry.aliases() == {"champion": third}
    assert tags(promotion) == {first: "archived", second: "archived", third: "production"}


def test_an_entry_says_who_when_from_to_why_report_and_approver(promotion: Promotion, new_version: NewVersion) -> None:
    promotion.promote(new_version(), BY, judged_against=None)
    version = new_version()
    promotion.approve(version, Author(who="approval", why="looks good"), approver="vera", decisions=["d"])
    entry = promotion.promote(version, Author(who="nightly", why="better"), judged_against="1")
    document = json.loads(promotion.trail.store.get(f"models/{promotion.registry.name}/audit/000000000005.json"))
    assert document.items() >= {
        "number": 5, "model": promotion.registry.name, "version": version, "action": "promote", "from_stage": "staging",
        "to_stage": "production", "former_champion": "1", "who": "nightly", "why": "better",
        "report": f"reports/{version}.html", "approver": "vera", "at": entry.at,
    }.items()  # fmt: skip
    assert actions(promotion) == ["register", "promote", "register", "approve", "promote"]


def test_done_again_it_leaves_no_second_entry(promotion: Promotion, new_version: NewVersion) -> None:
    """Broken: each retry would add to the trail, and nobody could count promotions."""
    version = new_version()
    promotion.stage(version, BY, report=None)
    for _ in range(2):
        promotion.approve(version, BY, approver="vera")
        promotion.canary(version, BY)
        promotion.promote(version, BY, judged_against=None)
    assert actions(promotion) == ["register", "approve", "canary", "promote"]
    promotion.promote(new_version(), BY, judged_against=version)
    promotion.stage(version, BY, report=None)
    assert promotion.registry.aliases() == {"champion": "2"}, "an archived version is not staged anew by a retry"


def test_another_champion_since_the_evaluation_stops_it(promotion: Promotion, new_version: NewVersion) -> None:
    """Broken: a model would replace one that it was never compared with."""
    first, late = new_version(), new_version()
    promotion.promote(first, BY, judged_against=None)
    with pytest.raises(ChampionChangedError, match=f"was not set and is version {first} now") as caught:
        promotion.promote(late, BY, judged_against=None)
    assert not caught.value.retryable


def test_of_two_promotions_at_once_one_wins(promotion: Promotion, new_version: NewVersion, project: Any) -> None:
    """Broken: both would believe that they are in production."""
    versions = [new_version() for _ in range(4)]
    begin = threading.Barrier(len(versions))

    def promote(version: str) -> str:
        registry = ModelRegistry(client=connect(project.tracking_uri), name=project.pipeline)
        begin.wait()
        try:
            return Promotion.of(registry, project.store).promote(version, BY, judged_against=None).version
        except ChampionChangedError as error:
            return str(error)

    with ThreadPoolExecutor(len(versions)) as pool:
        answers = list(pool.map(promote, versions))
    (winner,) = {answer for answer in answers if answer in versions}
    assert sum("the champion changed since the evaluation" in answer for answer in answers) == 3
    assert promotion.registry.aliases() == {"champion": winner}
    assert actions(promotion) == ["register"] * 4 + ["promote"]


class Stalled(ModelRegistry):
    """Of a process that the machine stops for a while before it sets an alias."""

    go_on = threading.Event()

    def set_alias(self, alias: str, version: str) -> bool:
        self.go_on.wait(60)
        return super().set_alias(alias, version)


def test_a_writer_that_was_stopped_does_not_undo_what_came_after(
    promotion: Promotion, new_version: NewVersion, project: Any
) -> None:
    """Broken: a model that was taken back would come back by itself, minutes later."""
    promotion.promote(new_version(), BY, judged_against=None)
    version = new_version()
    stalled = Promotion.of(Stalled(client=connect(project.tracking_uri), name=project.pipeline), project.store)
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(stalled.promote, version, BY, judged_against="1")
        while len(actions(promotion)) < 4:
            time.sleep(0.02)
        promotion.roll_back(BY)
        newest = new_version()
        Stalled.go_on.set()
        late.result(60)
    assert promotion.registry.aliases() == {"champion": "1", "staging": newest}
    assert tags(promotion) == {"1": "production", version: "archived", newest: "staging"}
    assert actions(promotion)[3:] == ["promote", "rollback", "register"]


def test_what_somebody_took_back_is_not_promoted_by_a_pipeline(promotion: Promotion, new_version: NewVersion) -> None:
    promotion.promote(new_version(), BY, judged_against=None)
    rejected = new_version()
    promotion.archive(rejected, Author(who="vera", why="too many late flights"))
    with pytest.raises(TakenBackError, match=r"by entry 4 \(archive, .*, vera\): too many late flights"):
        promotion.promote(rejected, BY, judged_against="1")
    assert promotion.promote_anyhow(rejected, BY).to_stage == "production", "a person may"


def test_an_approval_that_is_asked_for_is_needed(promotion: Promotion, new_version: NewVersion) -> None:
    """Broken: a DAG written by hand would go past the approvers."""
    version = new_version()
    with pytest.raises(ApprovalMissingError, match="waits for an approval"):
        promotion.promote(version, BY, judged_against=None, consent=consent_to(promotion, version))


def test_a_canary_that_is_asked_for_cannot_be_skipped(promotion: Promotion, new_version: NewVersion) -> None:
    """Broken: who marks the canary's task as success puts a version into production that no request has been sent."""
    version = new_version()
    with pytest.raises(CanaryMissingError, match=f"version {version} of .* is in staging, and its pipeline promotes"):
        promotion.promote(version, BY, judged_against=None, canary_minutes=1)
    promotion.canary(version, BY)
    with pytest.raises(CanaryNotOverError, match=r"for 0\.\d of 1 minutes: wait until"):
        promotion.promote(version, BY, judged_against=None, canary_minutes=1)
    assert CanaryNotOverError.retryable, "clocks of two machines differ"
    assert promotion.promote(version, BY, judged_against=None, canary_minutes=1e-6).stages.champion == version
    again = promotion.promote(version, BY, judged_against=None, canary_minutes=1)
    assert again.stages.champion == version, "a retry finds it done"


def test_one_canary_at_a_time(promotion: Promotion, new_version: NewVersion) -> None:
    first, second = new_version(), new_version()
    promotion.canary(first, BY)
    with pytest.raises(CanaryBusyError, match=f"version {first} is the canary since") as caught:
        promotion.canary(second, BY)
    assert caught.value.retryable


def test_a_champion_is_retired_and_the_next_is_judged_as_the_first(
    promotion: Promotion, new_version: NewVersion
) -> None:
    """Broken: where the only champion can no longer be scored, every night would fail."""
    first = new_version()
    promotion.promote(first, BY, judged_against=None)
    assert promotion.retire(Author(who="vera", why="its Polars is gone")).stages.champion is None
    assert promotion.retire(BY).action == "retire", "nothing to do"
    assert actions(promotion) == ["register", "promote", "retire"]
    assert promotion.registry.aliases() == {}
    second = new_version()
    with pytest.raises(TakenBackError, match=r"by entry 3 \(retire, .*, vera\): its Polars is gone"):
        promotion.promote(first, BY, judged_against=None)
    promotion.promote(second, BY, judged_against=None)
    assert promotion.registry.aliases() == {"champion": second}
    assert tags(promotion) == {first: "archived", second: "production"}


def test_rollbacks_lead_back_one_champion_each(promotion: Promotion, new_version: NewVersion) -> None:
    champion = None
    for _ in range(3):
        version = new_version()
        promotion.promote(version, BY, judged_against=champion)
        champion = version
    assert promotion.roll_back(BY).version == "2"
    assert promotion.registry.aliases() == {"champion": "2"}
    assert promotion.roll_back(BY, taken_back="3").version == "2", "3 is not in production: taken back already"
    assert promotion.roll_back(BY).version == "1", "not version 3, which was taken back"
    assert tags(promotion) == {"1": "production", "2": "archived", "3": "archived"}
    with pytest.raises(BadConfigError, match="no former champion to go back to: version 1 is the first"):
        promotion.roll_back(BY)
    with pytest.raises(TakenBackError, match=r"by entry \d+ \(rollback"):
        promotion.promote("3", BY, judged_against="1")


def test_rollback_reads_no_artifact(
    promotion: Promotion, new_version: NewVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken: with MLflow's artifact store away, a bad model would stay in production."""
    for champion in (None, "1"):
        promotion.promote(new_version(), BY, judged_against=champion)
    read: list[str] = []
    original = requests.Session.request

    def noted(self: requests.Session, method: str, url: str, *args: Any, **kwargs: Any) -> Any:
        read.append(url)
        return original(self, method, url, *args, **kwargs)

    monkeypatch.setattr(requests.Session, "request", noted)
    promotion.roll_back(BY)
    assert read
    assert not [url for url in read if "artifact" in url]


def test_a_former_champion_that_was_deleted_is_named(promotion: Promotion, new_version: NewVersion) -> None:
    for champion in (None, "1"):
        promotion.promote(new_version(), BY, judged_against=champion)
    promotion.registry.delete("1")
    with pytest.raises(BadConfigError, match=r"are no longer in the registry: version 1; it has 2\."):
        promotion.roll_back(BY)
    assert promotion.registry.aliases() == {"champion": "2"}


def test_a_rollback_goes_past_a_former_champion_that_was_deleted(promotion: Promotion, new_version: NewVersion) -> None:
    """Broken: somebody who cleans up would leave the next emergency without a way out."""
    for champion in (None, "1", "2"):
        promotion.promote(new_version(), BY, judged_against=champion)
    promotion.registry.delete("2")
    assert promotion.roll_back(BY).version == "1"
    assert promotion.registry.aliases() == {"champion": "1"}


def test_a_rollback_looks_at_the_champion_only(promotion: Promotion, new_version: NewVersion) -> None:
    """Broken: an alias that has nothing to do with it would keep a bad model in production."""
    for champion in (None, "1"):
        promotion.promote(new_version(), BY, judged_against=champion)
    promotion.registry.delete(new_version())
    with pytest.raises(AliasMovedError, match="'staging' is not set"):
        promotion.promote_anyhow("1", BY)
    assert promotion.roll_back(BY).version == "1"
    assert promotion.registry.aliases() == {"champion": "1"}


@pytest.mark.parametrize("move", ["promote", "canary", "approve", "promote_anyhow"])
def test_a_version_that_was_deleted_moves_nowhere(promotion: Promotion, new_version: NewVersion, move: str) -> None:
    """Broken: the trail would say that it is in production, and nothing could be moved any more."""
    promotion.promote(new_version(), BY, judged_against=None)
    deleted, newest = new_version(), new_version()
    promotion.registry.delete(deleted)
    call: Callable[[], Any] = {
        "promote": lambda: promotion.promote(deleted, BY, judged_against="1"),
        "canary": lambda: promotion.canary(deleted, BY),
        "approve": lambda: promotion.approve(deleted, BY, approver="vera"),
        "promote_anyhow": lambda: promotion.promote_anyhow(deleted, BY),
    }[move]
    with pytest.raises(BadConfigError, match=f"has no version {deleted}; it has {newest}, 1"):
        call()
    assert promotion.promote(newest, BY, judged_against="1").stages.champion == newest


class Deleting(ModelRegistry):
    """Somebody deletes the version in the moment between the entry and the alias."""

    def set_alias(self, alias: str, version: str) -> bool:
        if alias == "champion":
            self.delete(version)
        return super().set_alias(alias, version)


def test_a_champion_that_is_deleted_while_it_is_promoted_can_be_left(
    promotion: Promotion, new_version: NewVersion, project: Any
) -> None:
    """Broken: an entry that cannot be carried out would stop every one after it."""
    promotion.promote(new_version(), BY, judged_against=None)
    version = new_version()
    unlucky = Promotion.of(Deleting(client=connect(project.tracking_uri), name=project.pipeline), project.store)
    with pytest.raises(BadConfigError, match=r"is no longer in MLflow\. .* mlops models adopt") as caught:
        unlucky.promote(version, BY, judged_against="1")
    assert not caught.value.retryable
    entry = promotion.adopt(BY)
    assert (entry.stages.champion, entry.stages.former) == ("1", ())
    assert promotion.promote(new_version(), BY, judged_against="1").stages.former == ("1",)


@pytest.mark.parametrize(
    ("alias", "version", "found"),
    [
        pytest.param("champion", "2", "'champion' is version 2, and should be version 1", id="moved"),
        pytest.param("champion", None, "'champion' is not set, and should be version 1", id="removed"),
        pytest.param("canary", "2", "'canary' is version 2, and should be not set", id="added"),
    ],
)
def test_an_alias_moved_by_hand_is_refused_until_it_is_adopted(
    promotion: Promotion, new_version: NewVersion, alias: str, version: str | None, found: str
) -> None:
    """Broken: a change behind our back would be written over, or taken for one of ours."""
    promotion.promote(new_version(), BY, judged_against=None)
    new_version()
    if version is None:
        promotion.registry.delete_alias(alias)
    else:
        promotion.registry.set_alias(alias, version)
    with pytest.raises(AliasMovedError, match=found) as caught:
        promotion.promote("2", BY, judged_against="1")
    assert f"mlops models adopt {promotion.registry.name} --why" in str(caught.value)
    assert not caught.value.retryable
    as_found = promotion.registry.aliases()
    entry = promotion.adopt(Author(who="vera", why="an emergency"))
    assert (entry.action, entry.who, entry.why) == ("adopt", "vera", "an emergency")
    assert promotion.registry.aliases() == entry.stages.aliases
    assert entry.stages.champion == as_found.get("champion")
    assert promotion.transitions.settled() == entry, "and all goes on from there"


def test_what_waits_in_staging_waits_on_where_the_newest_is_deleted(
    promotion: Promotion, new_version: NewVersion
) -> None:
    """Broken: following the advice would archive a version that somebody has approved."""
    promotion.promote(new_version(), BY, judged_against=None)
    approved, newest = new_version(), new_version()
    decision = signed_decision(promotion, approved)
    promotion.approve(approved, BY, approver="vera", decisions=[decision])
    promotion.registry.delete(newest)
    promotion.adopt(BY)
    assert promotion.registry.aliases() == {"champion": "1", "staging": approved}
    promotion.promote(approved, BY, judged_against="1", consent=consent_to(promotion, approved))


def test_a_model_that_is_made_anew_has_no_former_champions(
    promotion: Promotion, new_version: NewVersion, project: Any
) -> None:
    """Broken: a rollback would put a version into production that never was there, for it has an old one's number."""
    for champion in (None, "1", "2"):
        promotion.promote(new_version(), BY, judged_against=champion)
    connect(project.tracking_uri).delete_registered_model(project.pipeline)
    with pytest.raises(AliasMovedError):
        new_version()
    promotion.adopt(BY)
    promotion.stage("1", BY, report=None)
    promotion.promote("1", BY, judged_against=None)
    assert new_version() == "2"
    with pytest.raises(BadConfigError, match="no former champion to go back to: version 1 is the first"):
        promotion.roll_back(BY)


def test_a_champion_of_before_the_trail_is_adopted(promotion: Promotion, new_version: NewVersion) -> None:
    version = new_version(into_staging=False)
    promotion.registry.set_alias("champion", version)
    with pytest.raises(AliasMovedError, match="after no entry"):
        new_version()
    assert promotion.adopt(BY).version == version
    new_version()


def test_a_forged_approval_is_worth_nothing(promotion: Promotion, new_version: NewVersion) -> None:
    """Broken: who can write one file would approve as somebody else, and the next transition would seal it."""
    version = new_version()
    folder = Path(promotion.trail.store.uri.removeprefix("file://"), "models", promotion.registry.name, "audit")
    path = folder / "000000000001.json"
    path.write_text(path.read_text().replace('"approver": null', '"approver": "vera"'))
    with pytest.raises(AuditError, match="was changed after it was written"):
        promotion.promote(version, BY, judged_against=None, consent=consent_to(promotion, version))


def test_a_copy_beside_the_trail_is_no_entry(promotion: Promotion, new_version: NewVersion) -> None:
    """Broken: an editor's backup file would stop all transitions."""
    new_version()
    folder = Path(promotion.trail.store.uri.removeprefix("file://"), "models", promotion.registry.name, "audit")
    (folder / "000000000001.json.bak").write_text("{}")
    assert actions(promotion) == ["register"]


@pytest.mark.parametrize("folder", ["audit", "applied"])
def test_a_copy_in_a_folder_below_the_trail_is_no_entry(
    promotion: Promotion, new_version: NewVersion, folder: str
) -> None:
    """Broken: whoever copies a trail to look at it, or plants one there, stops all transitions of the model."""
    new_version()
    store, place = promotion.trail.store, f"models/{promotion.registry.name}"
    ending = ".json" if folder == "audit" else ""
    whole = store.get(f"{place}/{folder}/000000000001{ending}")
    for copy in (f"{folder}/copy", f"{folder}/{folder}"):
        store.put(f"{place}/{copy}/000000000099{ending}", whole)
    assert (last := promotion.trail.last()) is not None
    assert last.number == 1
    check = TrailCheck(store=store, model=promotion.registry.name, trusted=())
    assert check.findings()[0] == 1
    new_version()
    assert actions(promotion) == ["register", "register"]


@pytest.mark.parametrize("harm", ["changed", "last changed", "removed", "last removed"])
def test_a_trail_that_was_tampered_with_says_so(promotion: Promotion, new_version: NewVersion, harm: str) -> None:
    promotion.promote(new_version(), BY, judged_against=None)
    new_version()
    folder = Path(promotion.trail.store.uri.removeprefix("file://"), "models", promotion.registry.name, "audit")
    path = folder / ("000000000003.json" if "last" in harm else "000000000002.json")
    if "changed" in harm:
        path.write_text(path.read_text().replace("vera", "mallory"))
    else:
        path.unlink()
    with pytest.raises(AuditError, match=path.name):
        list(promotion.trail.newest_first())


def test_what_is_not_there_gets_a_clear_message(promotion: Promotion, new_version: NewVersion) -> None:
    with pytest.raises(BadConfigError, match="has no version 7; it has none"):
        promotion.promote_anyhow("7", BY)
    unstaged = new_version(into_staging=False)
    new_version()
    with pytest.raises(BadConfigError, match=f"version {unstaged} .* has never been in staging"):
        promotion.promote(unstaged, BY, judged_against=None)
    with pytest.raises(BadConfigError, match="has no version 99; it has"):
        promotion.archive("99", BY)
    with pytest.raises(StepError, match="is in production: put the former champion"):
        promotion.archive(promotion.promote("2", BY, judged_against=None).version, BY)
