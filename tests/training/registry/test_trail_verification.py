"""An audit trail in the hands of somebody who may write the store, and holds no key that is trusted."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import random
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from signed_decisions import FOREIGN, KEY, OTTOS, TRUSTED, flipped

from mlops.commands.signing import sign_entry
from mlops.contract.stage_moves import archived, promoted, rolled_back
from mlops.registry import transitions
from mlops.registry.audit import AuditError, AuditTrail, Entry, UnsignedEntryError
from mlops.registry.promotion import Promotion
from mlops.registry.trail_verification import Anchor, Finding, TrailCheck
from mlops.registry.transitions import Author
from mlops.signing.seals import Seal, entry_key, seal_key
from mlops.store import Store
from mlops.tracking.connection import connect
from mlops.tracking.model_registry import ModelRegistry

from .conftest import BY, consent_to, signed_decision

COUNT = 7


class Trail:
    """A copy of a whole trail, and what somebody does to it."""

    def __init__(self, folder: Path, model: str) -> None:
        self.folder, self.model = folder, model
        self.store = Store(f"file://{folder}")
        newest = self.entry(COUNT)
        self.anchor = Anchor(number=COUNT, sha256=newest.digest)

    def path(self, number: int, kind: str = "audit") -> Path:
        return self.folder / f"models/{self.model}/{kind}" / (f"{number:012}" + (".json" if kind != "applied" else ""))

    def entry(self, number: int) -> Entry:
        return AuditTrail(self.store, self.model).read(number)

    def write(self, number: int, document: dict[str, Any], *, marked: bool = True) -> None:
        data = json.dumps(document, indent=1, sort_keys=True).encode()
        self.path(number).write_bytes(data)
        if marked:
            self.path(number, "applied").write_text(hashlib.sha256(data).hexdigest())

    def edit(self, number: int, **fields: Any) -> None:
        """Edit an entry and give all after it their new digests."""
        for at in range(number, COUNT + 1):
            document = json.loads(self.path(at).read_text())
            if at == number:
                document.update(fields)
            else:
                document["previous"] = hashlib.sha256(self.path(at - 1).read_bytes()).hexdigest()
            self.write(at, document)

    def remove(self, *numbers: int) -> None:
        for number in numbers:
            for kind in ("audit", "applied", "seals"):
                self.path(number, kind).unlink()

    def sign_with(self, key: Any, number: int) -> None:
        digest = hashlib.sha256(self.path(number).read_bytes()).hexdigest()
        seal = Seal(model=self.model, number=number, sha256=digest, signed_for="me", at="2026-01-01T00:00:00+00:00")
        self.path(number, "seals").write_bytes(seal.sealed(key))

    def findings(self, anchor: Anchor | None) -> list[Finding]:
        return TrailCheck(store=self.store, model=self.model, trusted=TRUSTED, anchor=anchor).findings()[1]


@pytest.fixture
def trail(promotion: Promotion, new_version: Callable[..., str], tmp_path: Path) -> Trail:
    """Seven entries, each signed, one by a person: of two nights, an approval and a rollback."""
    promotion.promote(new_version(), BY, judged_against=None)
    second = new_version()
    decisions = [signed_decision(promotion, second)]
    promotion.approve(second, BY, approver="vera", decisions=decisions)
    promotion.promote(second, BY, judged_against="1", consent=consent_to(promotion, second))
    promotion.roll_back(BY)
    new_version()
    for entry in promotion.trail.newest_first():
        key = OTTOS if entry.action == "rollback" else KEY
        assert sign_entry(promotion.trail.store, entry, key, "the night", TRUSTED)
    shutil.copytree(promotion.trail.store.uri.removeprefix("file://"), tmp_path / "copy")
    return Trail(tmp_path / "copy", promotion.registry.name)


def copied(trail: Trail, tmp_path: Path) -> Trail:
    shutil.rmtree(tmp_path / "next", ignore_errors=True)
    shutil.copytree(trail.folder, tmp_path / "next")
    return Trail(tmp_path / "next", trail.model)


def swap(trail: Trail, one: int, other: int) -> None:
    first, second = trail.path(one), trail.path(other)
    bodies = first.read_bytes(), second.read_bytes()
    first.write_bytes(bodies[1])
    second.write_bytes(bodies[0])


def forge(trail: Trail, key: Any = None) -> None:
    """Append an entry of one's own."""
    last = trail.entry(COUNT)
    document = json.loads(last.dump()) | {"number": COUNT + 1, "previous": last.digest, "who": "the night"}
    trail.write(COUNT + 1, document)
    if key is not None:
        trail.sign_with(key, COUNT + 1)


def rewrite(trail: Trail) -> None:
    """The whole trail, with new digests, and signatures of one's own."""
    trail.edit(1, who="nobody")
    for number in range(1, COUNT + 1):
        trail.sign_with(FOREIGN, number)


def replay(trail: Trail) -> None:
    """A signature that holds, of another entry."""
    shutil.copy(trail.path(3, "seals"), trail.path(5, "seals"))


def decide(trail: Trail, remove: bool = False) -> None:
    (path,) = trail.folder.glob("models/*/decisions/*.json")
    if remove:
        path.unlink()
    else:
        path.write_bytes(flipped(path.read_bytes(), 40))


def point(trail: Trail, *decisions: Any) -> None:
    """Append an unsigned entry whose version was approved by something else than decisions."""
    forge(trail)
    document = json.loads(trail.path(COUNT + 1).read_text())
    for live in document["stages"]["live"].values():
        live["decisions"] = decisions
    trail.write(COUNT + 1, document)


def replace_by_folder(trail: Trail) -> None:
    trail.path(4).unlink()
    trail.path(4).mkdir()
    (trail.path(4) / "x").write_bytes(b"")


NESTED = b"[" * 200_000
"""JSON that Python's reader gives up on with a RecursionError."""


def add_to_seal(trail: Trail, value: str) -> None:
    """Add a field to a signature that holds; its value is JSON that this project never writes."""
    seal = trail.path(5, "seals").read_text()
    trail.path(5, "seals").write_text(seal.removesuffix("}") + f',"x":{value}}}')


TAMPERINGS: dict[str, tuple[Callable[[Trail], None], str]] = {
    "an entry edited": (lambda trail: trail.edit(4, approver="admin"), "4 changed"),
    "rewritten as a whole with new digests": (rewrite, "1 forged"),
    "the newest edited": (lambda trail: trail.edit(COUNT, why="other reasons"), f"{COUNT} changed"),
    "the newest cut off": (lambda trail: trail.path(COUNT).unlink(), f"{COUNT} missing"),
    "the newest cut off with all traces": (lambda trail: trail.remove(COUNT), f"{COUNT} missing"),
    "the last three cut off": (lambda trail: trail.remove(5, 6, COUNT), "5 missing"),
    "deleted whole": (lambda trail: trail.remove(*range(1, COUNT + 1)), "1 missing"),
    "one in the middle removed": (lambda trail: trail.remove(3), "3 missing"),
    "two swapped": (lambda trail: swap(trail, 2, 4), "2 changed"),
    "one appended": (forge, f"{COUNT + 1} unsigned"),
    "one appended and signed by somebody else": (lambda trail: forge(trail, FOREIGN), f"{COUNT + 1} forged"),
    "a signature removed": (lambda trail: trail.path(4, "seals").unlink(), "4 unsigned"),
    "a signature replaced": (lambda trail: trail.sign_with(FOREIGN, 4), "4 forged"),
    "a signature of another entry": (replay, "5 forged"),
    "a mark removed": (lambda trail: trail.path(4, "applied").unlink(), "4 missing"),
    "a mark edited": (lambda trail: trail.path(4, "applied").write_text("0" * 64), "4 changed"),
    "an answer edited": (decide, "4 forged"),
    "an answer removed": (lambda trail: decide(trail, remove=True), "4 missing"),
    "an entry that is none": (lambda trail: trail.path(2).write_text("[]"), "2 changed"),
    "a number far away": (
        lambda trail: trail.path(999_999_999_999).write_bytes(trail.path(1).read_bytes()),
        "8 missing",
    ),
    "a number for a digest": (lambda trail: trail.edit(COUNT, previous=5), f"{COUNT} changed"),
    "a decision outside of the store": (lambda trail: point(trail, "../x"), f"{COUNT + 1} forged"),
    "a decision of another model": (
        lambda trail: point(trail, f"models/x/decisions/1-{'0' * 32}-1.json"),
        f"{COUNT + 1} forged",
    ),
    "a decision that is no key": (lambda trail: point(trail, "a//b"), f"{COUNT + 1} forged"),
    "a decision that is no text": (lambda trail: point(trail, 5), f"{COUNT + 1} changed"),
    "an entry too deep to read": (lambda trail: bool(trail.path(3).write_bytes(NESTED)), "3 changed"),
    "a signature too deep to read": (lambda trail: bool(trail.path(3, "seals").write_bytes(NESTED)), "3 forged"),
    "half a character in a signature": (lambda trail: add_to_seal(trail, '"\\ud800"'), "5 forged"),
    "no number in a signature": (lambda trail: add_to_seal(trail, "NaN"), "5 forged"),
    "a folder in place of an entry": (replace_by_folder, "4 missing"),
}


def test_each_tampering_is_named(trail: Trail, tmp_path: Path) -> None:
    """Broken: what happened can be hidden by whoever may write the store."""
    assert trail.findings(trail.anchor) == []
    for name, (tamper, named) in TAMPERINGS.items():  # the trail takes seconds to make, a copy none
        copy = copied(trail, tmp_path)
        tamper(copy)
        found = copy.findings(trail.anchor)
        assert named in [f"{finding.number} {finding.kind}" for finding in found], f"{name}: {found}"


def random_change(trail: Trail, draw: random.Random) -> str:
    """One or two random changes, none of which leaves the bytes as they were."""
    said = []
    for _ in range(draw.choice((1, 1, 2))):
        kind = draw.choice(("audit", "applied", "seals", "decisions"))
        files = sorted(trail.folder.glob(f"models/*/{kind}/*"))
        if not files:
            continue
        file = draw.choice(files)
        body = bytearray(file.read_bytes())
        match draw.choice(("flip", "cut", "remove", "move", "append")):
            case "flip" if body:
                body[draw.randrange(len(body))] ^= 1 << draw.randrange(8)
                file.write_bytes(body)
            case "cut" if len(body) > 1:
                file.write_bytes(body[: draw.randrange(len(body))])
            case "remove":
                file.unlink()
            case "move" if others := [other for other in files if other.read_bytes() != bytes(body)]:
                shutil.copy(file, draw.choice(others))
            case _:
                file.write_bytes(body + bytes([draw.randrange(1, 256)]))
        said.append(f"{file.parent.name}/{file.name}")
    return ", ".join(said)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_hundred_random_changes_are_found(trail: Trail, tmp_path: Path) -> None:
    """Broken: a change that nobody thought of goes unnoticed."""
    before, missed, done = contents(trail.folder), [], 0
    for seed in range(200):
        copy = copied(trail, tmp_path)
        said = random_change(copy, random.Random(seed))
        if contents(copy.folder) == before:  # the second change put right what the first did
            continue
        done += 1
        if not copy.findings(trail.anchor):
            missed.append((seed, said))
    assert done >= 100
    assert missed == []


def sign_all(promotion: Promotion) -> None:
    for entry in promotion.trail.newest_first():
        sign_entry(promotion.trail.store, entry, KEY, "the night", TRUSTED)


def trusting(promotion: Promotion) -> Promotion:
    return Promotion.of(promotion.registry, promotion.trail.store, TRUSTED)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody signs within the test: do not wait for it long."""
    monkeypatch.setattr(transitions, "SIGNING_SECONDS", 0.5)


def plant(promotion: Promotion, *, marked: bool = True, **changes: Any) -> Entry:
    """Append an entry as who may write the store can: unsigned."""
    last = promotion.trail.last()
    assert last is not None
    planted = dataclasses.replace(last, number=last.number + 1, previous=last.digest, **changes)
    planted = Entry.load(planted.dump())
    assert promotion.trail.append(planted)
    if marked:
        promotion.trail.mark_applied(planted)
    return planted


@pytest.mark.usefixtures("hasty")
def test_a_planted_entry_with_its_mark_chooses_no_former_champion(
    promotion: Promotion, new_version: Callable[..., str]
) -> None:
    """Broken: a version that approvers rejected goes into production by an honest rollback."""
    for champion in (None, "1"):
        promotion.promote(new_version(), BY, judged_against=champion)
    rejected = new_version()
    promotion.archive(rejected, BY)
    sign_all(promotion)
    last = promotion.trail.last()
    assert last is not None
    plant(promotion, stages=dataclasses.replace(last.stages, former=(rejected,)))
    careful = trusting(promotion)
    with pytest.raises(UnsignedEntryError, match=r"was written and carried out, and nobody has signed it.*audit sign"):
        careful.roll_back(Author(who="vera", why="complaints"))
    # Nor by what a person does then, as the message says.
    careful.adopt(Author(who="vera", why="forged"))
    sign_all(promotion)
    assert careful.roll_back(Author(who="vera", why="complaints")).stages.champion == "1"
    assert promotion.registry.aliases()["champion"] == "1"


def rollback_of(last: Entry, version: str, by: Author) -> dict[str, Any]:
    """Return the fields of the entry that a rollback writes after the newest one."""
    return {
        "action": "rollback", "version": version, "from_stage": "archived", "to_stage": "production", "who": by.who,
        "why": by.why, "former_champion": last.stages.champion, "report": None, "approver": None,
        "stages": rolled_back(last.stages, version, at=last.at, report=None),
    }  # fmt: skip


@pytest.mark.usefixtures("hasty")
def test_two_planted_entries_are_no_earlier_try_either(promotion: Promotion, new_version: Callable[..., str]) -> None:
    """Broken: the second planted entry passes for the rollback's own, and the first one is believed for it."""
    for champion in (None, "1"):
        promotion.promote(new_version(), BY, judged_against=champion)
    rejected = new_version()
    promotion.archive(rejected, BY)
    sign_all(promotion)
    last, by = promotion.trail.last(), Author(who="vera by rollback/r/rollback", why="complaints")
    assert last is not None
    first = plant(promotion, stages=dataclasses.replace(last.stages, former=(rejected,)))
    plant(promotion, marked=False, **rollback_of(first, rejected, by))
    with pytest.raises(AuditError, match="nobody has signed it"):
        trusting(promotion).roll_back(by)
    assert promotion.registry.aliases()["champion"] == "2"


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize(
    "changes",
    [{}, {"why": "approved by the board"}, {"approver": "the board"}],
    ids=["an earlier try", "another reason", "another approver"],
)
def test_a_planted_entry_that_says_something_else_is_no_earlier_try(
    promotion: Promotion, new_version: Callable[..., str], changes: dict[str, Any]
) -> None:
    """Broken: a person signs, with their own rollback, a reason and an approver that somebody else has written."""
    for champion in (None, "1"):
        promotion.promote(new_version(), BY, judged_against=champion)
    sign_all(promotion)
    last, by = promotion.trail.last(), Author(who="alice", why="mine")
    assert last is not None
    planted = plant(promotion, marked=False, **{**rollback_of(last, "1", by), **changes})
    if not changes:
        assert trusting(promotion).roll_back(by, taken_back="2").number == planted.number
        return
    with pytest.raises(UnsignedEntryError):
        trusting(promotion).roll_back(by, taken_back="2")
    assert not promotion.trail.store.exists(seal_key(promotion.registry.name, planted.number))
    assert promotion.registry.aliases() == {"champion": "2"}


@pytest.mark.timeout(60)
def test_a_copy_of_the_newest_entry_under_the_next_number_is_named(
    promotion: Promotion, new_version: Callable[..., str]
) -> None:
    """Broken: whoever may write the store has each transition of the model, a rollback too, try for ever."""
    for champion in (None, "1"):
        promotion.promote(new_version(), BY, judged_against=champion)
    sign_all(promotion)
    store, model = promotion.trail.store, promotion.registry.name
    store.put(entry_key(model, 5), store.get(entry_key(model, 4)))
    careful, said = trusting(promotion), rf"{entry_key(model, 5)} .* holds entry 4 of {model}: .* Delete it"
    for move in (careful.roll_back, careful.adopt):
        with pytest.raises(AuditError, match=said):
            move(BY)
    assert promotion.registry.aliases() == {"champion": "2"}


@pytest.mark.usefixtures("hasty")
def test_an_entry_that_is_planted_during_a_transition_moves_no_alias(
    promotion: Promotion, new_version: Callable[..., str], project: Any
) -> None:
    """Broken: who writes an entry just after that of a night has the night itself carry it out."""
    wanted, rejected = new_version(), new_version()
    sign_all(promotion)
    planted: list[Entry] = []

    class Watched(ModelRegistry):
        def set_tag(self, version: str, key: str, value: str) -> None:
            super().set_tag(version, key, value)
            last = promotion.trail.last()
            if not planted and last is not None:
                stages = promoted(last.stages, rejected, at=last.at)
                planted.append(plant(promotion, marked=False, version=rejected, stages=stages))

    registry = Watched(client=connect(project.tracking_uri), name=project.pipeline)
    with pytest.raises(UnsignedEntryError):
        Promotion.of(registry, project.store, TRUSTED).promote(wanted, BY, judged_against=None)
    assert planted
    assert promotion.registry.aliases() == {"champion": wanted}


def test_a_signature_that_comes_late_is_waited_for(promotion: Promotion, new_version: Callable[..., str]) -> None:
    """Broken: two tasks of one model, the second quicker than the first one's operator, fail one another."""
    version = new_version()
    signing = threading.Timer(1, sign_all, [promotion])
    signing.start()
    assert trusting(promotion).archive(version, BY).stages.live == {}
    signing.join()


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("action", ["register", "promote"])
def test_what_an_earlier_try_wrote_needs_no_signature(
    promotion: Promotion, new_version: Callable[..., str], action: str
) -> None:
    """Broken: a task that was killed between its transition and its end waits for a signature that only it gives."""
    version, by = new_version(into_staging=False), Author(who="the night", why="good")

    def night() -> int:
        careful = trusting(promotion)
        if action == "register":
            return careful.stage(version, by, report="r").number
        return careful.promote(version, by, judged_against=None).number

    if action == "promote":
        promotion.stage(version, BY, report="r")
        sign_all(promotion)
    assert night() == night()


def test_a_forged_entry_is_not_carried_out(
    promotion: Promotion, new_version: Callable[..., str], project: Any, hasty: None
) -> None:
    """Broken: who may write the store puts a version into production by writing that it was."""
    first = new_version()
    promotion.promote(first, BY, judged_against=None)
    worse = new_version()
    store, last = project.store, promotion.trail.last()
    assert last is not None
    forged = Entry(**{
        **{name: getattr(last, name) for name in ("at", "model", "report", "approver", "from_stage")},
        "number": last.number + 1, "version": worse, "action": "promote", "to_stage": "production", "who": "the night",
        "former_champion": first, "why": "x", "previous": last.digest,
        "stages": promoted(last.stages, worse, at=last.at),
    })  # fmt: skip
    assert promotion.trail.append(forged)
    registry = ModelRegistry(client=connect(project.tracking_uri), name=project.pipeline)
    careful = Promotion.of(registry, store, TRUSTED)
    with pytest.raises(AuditError, match=r"promote of version 2 by the night\) was written .* nobody has signed"):
        careful.roll_back(Author(who="vera", why="now"))
    # Also where it pretends to be an earlier try of the same transition.
    with pytest.raises(AuditError, match="nobody has signed it"):
        careful.archive(worse, Author(who="the night", why="x"))
    assert registry.aliases() == {"champion": first, "staging": worse}
    # A person puts an end to it.
    careful.adopt(Author(who="vera", why="forged"))
    assert registry.aliases() == {"champion": first, "staging": worse}
    sign_all(promotion)
    careful.archive(worse, BY)
    assert registry.aliases() == {"champion": first}


def test_a_killed_try_is_completed_by_the_next(
    promotion: Promotion, new_version: Callable[..., str], project: Any
) -> None:
    """Broken: a night that was killed between its entry and the aliases waits for a signature that nobody gives."""
    version = new_version()
    last = promotion.trail.last()
    assert last is not None
    by = Author(who="the night", why="good")
    written = Entry(**{
        **{name: getattr(last, name) for name in ("at", "model", "report", "approver")},
        "number": last.number + 1, "version": version, "action": "archive", "from_stage": "staging", "who": by.who,
        "to_stage": "archived", "former_champion": None, "why": by.why, "previous": last.digest,
        "stages": archived(last.stages, version),
    })  # fmt: skip
    assert promotion.trail.append(written)
    sign_entry(project.store, last, KEY, "the night", TRUSTED)
    registry = ModelRegistry(client=connect(project.tracking_uri), name=project.pipeline)
    Promotion.of(registry, project.store, TRUSTED).archive(version, by)
    assert registry.aliases() == {}
    assert promotion.trail.is_applied(written.number)


def test_who_signs_again_after_a_key_was_lost(trail: Trail) -> None:
    """Broken: entries whose key is trusted no more could never be answered for again."""
    entry = trail.entry(3)
    assert not sign_entry(trail.store, entry, KEY, "vera", TRUSTED), "it is signed"
    trail.sign_with(FOREIGN, 3)
    assert sign_entry(trail.store, entry, KEY, "vera: looked at it", TRUSTED)
    assert trail.findings(trail.anchor) == []
    assert Seal.unsealed(trail.store.get(seal_key(trail.model, 3)), TRUSTED).signed_for == "vera: looked at it"
    assert entry.artifact.key == entry_key(trail.model, 3)
