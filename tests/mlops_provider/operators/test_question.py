"""Whose answers to an approval count, and for what: without Airflow's form."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from typing import Any

import pytest

from mlops.contract.refs import ModelVersionRef
from mlops.contract.sections.release import Approval
from mlops.signing.decision import Decision
from mlops_provider.operators.question import Asked, assignees, may_keep, question_about


@pytest.fixture
def asked(version_ref: ModelVersionRef) -> Any:
    def make(*, started_by: str = "", with_names: bool = True, **settings: Any) -> Asked:
        approval = Approval(**{"approvers": ["vera", "7"], **settings})
        question = question_about(version_ref, approval, "p/night/approve/-1/2")
        return Asked(question=question, approval=approval, started_by=started_by, with_names=with_names)

    return make


def event(asked: Asked, person: str | None, name: str | None = None, option: int = 0) -> dict[str, Any]:
    """An answer as Airflow hands it on."""
    return {
        "chosen_options": [asked.question.options[option]],
        "params_input": {"why": "good"},
        "responded_at": datetime(2026, 11, 22, tzinfo=UTC),
        "responded_by_user": {"id": person, "name": name or person} if person else None,
    }


@pytest.mark.parametrize(
    ("person", "name", "refused"),
    [
        pytest.param("vera", "vera", None, id="by the simple manager's name"),
        pytest.param("3", "vera", None, id="by name, where ids are numbers"),
        pytest.param("7", "Otto Mayer", None, id="by id"),
        pytest.param("otto", "otto", "otto is not one of the approvers, vera, 7", id="not an approver"),
    ],
)
def test_an_approver_is_known_by_name_or_id(asked: Any, person: str, name: str, refused: str | None) -> None:
    assert asked().refusal(event(asked(), person, name), []) == refused


def test_who_started_the_run_may_reject_but_not_approve(asked: Any) -> None:
    own = asked(started_by="vera")
    assert own.people == ["7"]
    assert own.refusal(event(own, "vera"), []) == "vera started this run, and who does may not approve its version"
    assert own.refusal(event(own, "3", "vera"), []) is not None, "their id is another word for them"
    assert own.refusal(event(own, "vera", option=1), []) is None
    alone = asked(started_by="vera", separation=False)
    assert alone.people == ["vera", "7"]
    assert alone.refusal(event(alone, "vera"), []) is None


def test_as_many_people_agree_as_are_asked_for(asked: Any) -> None:
    both = asked(minimum=2)
    first = both.decision(event(both, "vera"))
    assert both.verdict([]) is None
    assert both.verdict([first]) is None
    assert both.refusal(event(both, "vera"), [first]) == "vera has answered already, and 2 different people must agree"
    second = both.decision(event(both, "7"))
    assert both.verdict([first, second]) is True
    assert both.verdict([first, both.decision(event(both, "7", option=1))]) is False, "one rejection is enough"
    nobody = both.decision(event(both, None))
    assert both.verdict([nobody]) is True, "nobody's answer stands for all"
    assert both.verdict([both.decision(event(both, None, option=1))]) is False


def test_a_yes_counts_as_long_as_its_person_is_an_approver(asked: Any) -> None:
    """Broken: of two people who must agree, one has left, and the version goes into production by one yes."""
    before = asked(approvers=["vera", "otto"], minimum=2)
    left, stays = before.decision(event(before, "3", "vera")), before.decision(event(before, "otto"))
    today = asked(approvers=["otto", "7"], minimum=2)
    assert before.verdict([left, stays]) is True
    assert today.verdict([left, stays]) is None
    assert today.verdict([left, stays, today.decision(event(today, "7"))]) is True
    assert today.verdict([before.decision(event(before, "vera", option=1)), stays]) is False, "a rejection stands"
    everybody = asked(approvers=["otto", "7"], minimum=2, with_names=False)
    assert everybody.verdict([left, stays]) is True, "where nobody logs in nobody is known by name"
    assert today.verdict([today.decision(event(today, None))]) is True, "nobody's answer stands for all"


def test_where_nobody_logs_in_anybody_may_answer(asked: Any) -> None:
    open_to_all = asked(with_names=False, started_by="Anonymous")
    assert open_to_all.refusal(event(open_to_all, "Anonymous"), []) is None


def test_the_question_names_what_it_is_about(version_ref: ModelVersionRef, asked: Any) -> None:
    """Broken: the answer to one version would be one to another."""
    question = asked().question
    assert question.options[0] == f"Approve version 1 ({version_ref.parent.digest()[:16]})"
    assert version_ref.parent.digest() in question.body
    approval = asked().approval
    others = [
        question_about(dataclasses.replace(version_ref, version="2"), approval, question.asked_by),
        question_about(
            dataclasses.replace(version_ref, parent=dataclasses.replace(version_ref.parent, reason="other")),
            approval,
            question.asked_by,
        ),
    ]
    assert len({question.options, *(other.options for other in others)}) == 3
    cleared = question_about(version_ref, approval, "p/night/approve/-1/5")
    assert cleared.id != question.id, "an answer from before a clear is to another question"


def test_the_question_says_where_nobody_has_reviewed_the_schema(version_ref: ModelVersionRef, asked: Any) -> None:
    """Broken: who approves would believe that the data was held against what somebody had decided."""
    assert "Nobody has reviewed" not in asked().question.body
    wire = version_ref.to_wire()
    validation = wire
    while validation["kind"] != "validation":
        validation = validation["parent"]
    validation["artifacts"]["schema"] = {"key": "schema.pbtxt", "sha256": "5" * 64, "num_bytes": 9}
    proposed = question_about(ModelVersionRef.from_wire(wire), asked().approval, "p/night/approve/-1/2")
    assert "**Nobody has reviewed what its data must look like**" in proposed.body


HIDING = "better\n\n<!--\n\x1b[2J| x |\n\n[a](javascript:x) _b_ **c** `d &lt; auc_at_10"


def test_text_of_an_evaluation_hides_nothing_in_the_form(version_ref: ModelVersionRef, asked: Any) -> None:
    """Broken: code that is to be judged, or a value of its data, hides from the approvers what they are warned of."""
    from markdown_it import MarkdownIt

    wire = version_ref.to_wire()
    wire["parent"]["reason"] = HIDING
    wire["parent"]["champion"] = HIDING
    wire["parent"]["metrics"] = {f"candidate.auc{HIDING}": 0.5}
    wire["parent"]["metrics"] |= {f"candidate.auc{HIDING}.{limit}": 0.5 for limit in ("low", "high")}
    wire["parent"]["artifacts"]["report"] = {"key": "a) <!-- b.html", "sha256": "5" * 64, "num_bytes": 9}
    validation = wire
    while validation["kind"] != "validation":
        validation = validation["parent"]
    validation["artifacts"]["schema"] = {"key": "schema.pbtxt", "sha256": "5" * 64, "num_bytes": 9}
    ref = ModelVersionRef.from_wire(wire)
    body = question_about(ref, asked().approval, "p/night/approve/-1/2").body
    assert body.startswith("**Nobody has reviewed")
    assert "\x1b" not in body

    tokens = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).parse(body)
    inline = [child for token in tokens for child in token.children or ()]
    assert {token.type for token in tokens if "html" in token.type} == set()
    assert {child.type for child in inline} == {"text", "strong_open", "strong_close", "link_open", "link_close"}
    assert [child.attrs["href"] for child in inline if child.type == "link_open"] == [
        "/mlops/reports/a%29%20%3C%21--%20b.html"
    ]
    shown = "".join(child.content for child in inline)
    said = " ".join("".join(letter if letter.isprintable() else " " for letter in HIDING).split())
    assert shown.count(said) == 3
    assert "auc_at_10" in body, "plain text stays readable"
    assert f"SHA-256 {ref.parent.digest()}" in shown


def test_the_reason_of_an_answer_is_one_printable_line(asked: Any) -> None:
    """Broken: an approver's reason rewrites what `mlops models history` shows of other entries."""
    given = event(asked(), "vera") | {"params_input": {"why": " good\x1b[1A\x1b[2K\n  enough "}}
    assert asked().decision(given).why == "good [1A [2K enough"
    assert asked().decision(given | {"params_input": None}).why == ""


def test_the_record_is_read_as_it_was_written(asked: Any) -> None:
    from signed_decisions import KEY, TRUSTED

    found = asked().decision(event(asked(), "3", "vera"))
    assert Decision.unsealed(found.sealed(KEY), TRUSTED) == found
    assert (found.approved, found.by, found.why, found.person_id) == (True, "vera", "good", "3")


@pytest.mark.parametrize(
    ("manager", "people", "found"),
    [
        ("airflow.api_fastapi.auth.managers.simple.simple_auth_manager.SimpleAuthManager", ["vera"], ["vera"]),
        ("airflow.providers.fab.auth_manager.fab_auth_manager.FabAuthManager", ["7", "12"], ["7", "12"]),
        ("airflow.providers.fab.auth_manager.fab_auth_manager.FabAuthManager", ["vera", "7"], []),
    ],
    ids=["simple", "FAB, ids", "FAB, names"],
)
def test_airflow_checks_ids_only(manager: str, people: list[str], found: list[str]) -> None:
    """Broken: under FAB a name among the assignees would let nobody through."""
    assert assignees(people, manager) == found


def test_more_people_than_there_are_cannot_agree() -> None:
    with pytest.raises(ValueError, match="minimum is 2, and approvers names 1"):
        Approval(approvers=["vera", "vera"], minimum=2)


@pytest.mark.parametrize(
    ("shown", "wanted", "kept"),
    [
        (["vera", "otto", "ada"], ["otto", "ada"], True),
        (["otto", "ada"], ["ada"], True),
        (["otto"], ["otto", "ada"], False),
        (["otto", "ada", "eve"], ["otto", "ada"], False),
        ([], ["otto", "ada"], False),
    ],
    ids=["who has answered", "of a later try", "one is missing", "a stranger", "open to everybody"],
)
def test_a_form_keeps_its_people_as_long_as_they_are_approvers(shown: list[str], wanted: list[str], kept: bool) -> None:
    """Broken: an approver is not let through, or somebody who is none is asked."""

    def users(names: list[str]) -> list[dict[str, str]]:
        return [{"id": name, "name": name} for name in names]

    assert may_keep(users(shown), users(wanted), users(["vera", "otto", "ada"])) is kept
