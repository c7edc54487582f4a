"""
A release decision: one answer of one person to one question about one model version, as a signed record.

The operator that asked writes it once, at :func:`decision_key`. It is verified by whoever acts on it: the same operator
in a later try, and the promote step before it moves a version.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self

from mlops.contract.refs import ModelVersionRef, digest_of
from mlops.signing.envelope import SignedRecord


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """What was asked, as it was shown."""

    model: str
    version: str
    lineage_sha256: str
    """Digest of the version's report and all that it came from: weights, code, features, data."""
    report_sha256: str | None
    """Digest of the HTML report; None where the evaluation has none."""
    subject: str
    body: str
    options: tuple[str, ...]
    """The first one approves."""
    asked_by: str
    """The task instance, with the number of its clears: a retry asks the same question, a clear another one."""

    @property
    def id(self) -> str:
        return digest_of(asdict(self))


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision(SignedRecord):
    """An answer."""

    predicate_type: ClassVar = "urn:mlops:release-decision:v1"

    question: Question
    answer: str
    """One of the options."""
    person_id: str | None
    """As Airflow's auth manager authenticated them; None where nobody answered in time."""
    person_name: str | None
    why: str
    channel: str
    """How the answer came, e.g. ``Airflow form``."""
    at: str
    """When it was given, ISO 8601, UTC."""

    @property
    def approved(self) -> bool:
        return self.answer == self.question.options[0]

    @property
    def by(self) -> str:
        return "nobody in time" if self.person_id is None else self.person_name or self.person_id

    def subject(self) -> tuple[str, str]:
        return f"{self.question.model}/{self.question.version}", self.question.lineage_sha256

    @classmethod
    def from_predicate(cls, predicate: Mapping[str, Any]) -> Self:
        question = {**predicate["question"], "options": tuple(predicate["question"]["options"])}
        return cls(**{**predicate, "question": Question(**question)})

    def difference(self, version: ModelVersionRef) -> str | None:
        """In which field it is about another version than this one, in a sentence; None where it is about it."""
        wanted = binding(version)
        for name, value in wanted.items():
            if (found := getattr(self.question, name)) != value:
                return f"its {name} is {found!r}, and that of version {version.version} is {value!r}"
        return None


def binding(version: ModelVersionRef) -> dict[str, Any]:
    """The fields of a :class:`Question` that tie it to a version."""
    report = version.parent.artifacts.get("report")
    return {
        "model": version.name,
        "version": version.version,
        "lineage_sha256": version.parent.digest(),
        "report_sha256": report.sha256 if report else None,
    }


def decision_key(question: Question, number: int) -> str:
    """
    Where the record of an answer lies in the store.

    :param number: from 1: of the people who are asked
    """
    return f"models/{question.model}/decisions/{question.version}-{question.id[:32]}-{number}.json"


def consents(decisions: Iterable[Decision]) -> int | None:
    """How many different people approved; None where nobody's answer stood for all of them."""
    people: Mapping[str, Decision] = {found.person_id or "": found for found in decisions if found.approved}
    return None if "" in people else len(people)
