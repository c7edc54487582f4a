"""What an approval asks people, and whose answers count. Pure functions: Airflow's form and the store are elsewhere."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from mlops.contract.printable import one_line
from mlops.contract.refs import CheckpointRef, DatasetRef, ModelVersionRef, ValidationRef
from mlops.contract.results import of_candidate
from mlops.contract.sections.release import Approval
from mlops.contract.step import EXPERIMENTS
from mlops.signing.decision import Decision, Question, binding
from mlops_provider.links import report_url

CHANNEL = "Airflow form"
_MOST_CHARACTERS: Final = 2000
"""Of a reason, or a name, that the form shows; the report has the whole."""
_MARKDOWN: Final = re.compile(r"[\\`*\[\]<|&~]|(?<![^\W_])_|_(?![^\W_])|^[-+=#>]")
"""Characters that begin something in Markdown; not ``_`` between letters, as in names of metrics."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """A question, and who may answer it."""

    question: Question
    approval: Approval
    started_by: str
    """Who started the run by hand; empty where the schedule did."""
    with_names: bool
    """Whether Airflow tells its users apart: under ``simple_auth_manager_all_admins`` anybody is anybody."""

    @property
    def people(self) -> list[str]:
        """The approvers that may answer."""
        excluded = {self.started_by} if self.with_names and self.approval.separation else set()
        return [person for person in dict.fromkeys(self.approval.approvers) if person not in excluded]

    def default(self) -> str:
        """The option that stands where nobody answers in time."""
        return self.question.options[0 if self.approval.on_timeout == "approve" else 1]

    def refusal(self, event: Mapping[str, Any], earlier: Sequence[Decision]) -> str | None:
        """
        Why an answer does not count, in a sentence; None where it does.

        :param event: what Airflow's form holds of it
        :param earlier: answers of other people to the same question
        """
        person = event.get("responded_by_user")
        if person is None or not self.with_names:
            return None
        known = {str(person["id"]), str(person["name"])}
        name = person["name"] or person["id"]
        if not known & set(self.approval.approvers):
            return f"{name} is not one of the approvers, {', '.join(self.approval.approvers)}"
        if self.approval.separation and self.started_by in known and self.is_approval(event):
            return f"{name} started this run, and who does may not approve its version"
        if str(person["id"]) in {found.person_id for found in earlier}:
            return f"{name} has answered already, and {self.approval.minimum} different people must agree"
        return None

    def counts(self, decision: Decision) -> bool:
        """Whether a recorded answer counts: a rejection stands, an approval as long as its person is an approver."""
        people = {decision.person_id, decision.person_name}
        is_anybodys = decision.person_id is None or not self.with_names
        return not decision.approved or is_anybodys or bool(people & set(self.approval.approvers))

    def is_approval(self, event: Mapping[str, Any]) -> bool:
        return list(event["chosen_options"]) == [self.question.options[0]]

    def decision(self, event: Mapping[str, Any]) -> Decision:
        """The answer as it is recorded."""
        person = event.get("responded_by_user")
        return Decision(
            question=self.question,
            answer=event["chosen_options"][0],
            person_id=str(person["id"]) if person else None,
            person_name=str(person["name"]) if person else None,
            why=one_line(str((event.get("params_input") or {}).get("why") or "")),
            channel=CHANNEL,
            at=event["responded_at"].isoformat(),
        )

    def verdict(self, decisions: Sequence[Decision]) -> bool | None:
        """Whether it is approved, by the answers that count; None where more people are to be asked."""
        decisions = [found for found in decisions if self.counts(found)]
        if any(not found.approved for found in decisions):
            return False
        if any(found.person_id is None for found in decisions) or len(decisions) >= self.approval.minimum:
            return True
        return None


def question_about(version: ModelVersionRef, approval: Approval, asked_by: str) -> Question:
    """:param asked_by: the task instance, see :attr:`Question.asked_by`"""
    bound = binding(version)
    return Question(
        **bound,
        subject=subject_about(version.name, version.version),
        body=summary(version, approval),
        options=options_about(version.version, bound["lineage_sha256"]),
        asked_by=asked_by,
    )


def subject_about(model: str, version: str) -> str:
    return f"Put version {version} of {model} into production?"


def options_about(version: str, lineage_sha256: str) -> tuple[str, str]:
    # The answer names what it is about: the form of an earlier question cannot approve another version.
    named = f"version {version} ({lineage_sha256[:16]})"
    return f"Approve {named}", f"Reject {named}"


def assignees(people: Collection[str], auth_manager: str) -> list[str]:
    """
    Ids of users who may answer the form, as far as Airflow can check that; empty: whoever may answer forms at all.

    FAB's ids are numbers: with a name among them nobody would be let through, so the operator checks the answer alone.

    :param auth_manager: import path of Airflow's
    """
    if "fab" in auth_manager.lower() and not all(person.isdecimal() for person in people):
        return []
    return list(people)


def may_keep(
    shown: Sequence[Mapping[str, str]], wanted: Sequence[Mapping[str, str]], everybody: Sequence[Mapping[str, str]]
) -> bool:
    """
    Whether a form may be answered by the people that an earlier question named, where nothing could make it anew.

    It may as long as nobody is missing or a stranger: the second answer of whoever has answered does not count, by
    :meth:`Asked.refusal`.

    :param shown: users whom the form names
    :param wanted: those who have yet to answer
    :param everybody: all who may answer
    """
    return shown == everybody or (all(user in shown for user in wanted) and all(user in everybody for user in shown))


def summary(version: ModelVersionRef, approval: Approval) -> str:
    """What one decides on, as Markdown."""
    report = version.parent
    champion = "no model was in production" if report.champion is None else f"version {report.champion} in production"
    measured = sorted(of_candidate(report.metrics))
    # The warnings come first: what follows is of the code and the data that were judged, however long it is.
    lines = _warnings(version)
    lines += [_text(report.reason), "", f"| on held-out data | version {version.version} | {_text(champion)} |"]
    lines.append("|---|---|---|")
    for metric in measured:
        cells = [_interval(report.metrics, f"{model}.{metric}") for model in ("candidate", "champion")]
        lines.append(f"| {_text(metric)} | {' | '.join(cells)} |")
    lines.append("")
    if (page := report.artifacts.get("report")) is not None:
        address = quote(report_url(page.key), safe="/=")
        lines.append(f"[The whole report]({address}), SHA-256 {_text(page.sha256)}")
    lines.append(f"\nLineage of version {version.version}: SHA-256 {report.digest()}")
    if approval.minimum > 1:
        lines.append(f"\n{approval.minimum} different people must approve; they are asked one after the other.")
    return "\n".join(lines)


def _warnings(version: ModelVersionRef) -> list[str]:
    """Return what is unusual about a version, a paragraph each, as Markdown."""
    lines = []
    if "schema" in version.ancestor(ValidationRef).artifacts:
        lines.append(
            "**Nobody has reviewed what its data must look like**: the schema was proposed from the first data, faults "
            "included (the validate task's log says how to take it over).\n"
        )
    checkpoint = version.ancestor(CheckpointRef)
    if not checkpoint.epoch and "initial_weights" in checkpoint.artifacts:
        lines.append(
            "**It was not trained here**: which rows its weights have seen is not known. Where the held-out rows may "
            "be among them, the numbers above say too much.\n"
        )
    if (training := checkpoint.place).startswith(f"{EXPERIMENTS}/"):
        lines.append(
            f"**It is of an experiment of {_text(training.split('/')[1])}**, {_text(training)}: its code and settings "
            "are what was tried out, not what the pipeline's file says (the report shows them).\n"
        )
    if version.ancestor(DatasetRef).place.startswith(f"{EXPERIMENTS}/"):
        lines.append(
            "**So are its data**, those that it is judged on included: the snapshot was taken by the experiment, and "
            "not by a run of the pipeline.\n"
        )
    return lines


def _text(text: str) -> str:
    """
    Return text of others as one line that Markdown shows as it is.

    Airflow's form leaves out HTML: an open comment in a reason would hide all that follows it.
    """
    line = one_line(text)
    if len(line) > _MOST_CHARACTERS:
        line = f"{line[:_MOST_CHARACTERS]} ..."
    return _MARKDOWN.sub(r"\\\g<0>", line)


def _interval(metrics: Mapping[str, float], name: str) -> str:
    """The value, and where it may lie; as ``mlops.evaluation.comparison`` names them."""
    if name not in metrics:
        return ""
    return f"{metrics[name]:.4f} ({metrics[f'{name}.low']:.4f} to {metrics[f'{name}.high']:.4f})"
