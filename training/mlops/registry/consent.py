"""The check that enough people have approved a version: their signed records are checked again before it moves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlops.contract.refs import ModelVersionRef
from mlops.contract.stage_moves import Live
from mlops.contract.step import BadConfigError, BadDataError
from mlops.signing.decision import Decision, consents
from mlops.signing.envelope import EnvelopeError
from mlops.store import Store


class ApprovalMissingError(BadConfigError):
    """The pipeline asks for an approval that nobody has given."""


class ForgedDecisionError(BadDataError):
    """The record of a decision is missing, was changed, is about another version, or is signed by another key."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Consent:
    """The approvals that a version needs before it goes into production."""

    store: Store
    version: ModelVersionRef
    trusted: Sequence[str]
    """Public keys that record their answers; those that people have do not count."""
    minimum: int
    """Number of people who must have approved."""

    def check(self, live: Live) -> None:
        """
        Check the approvals that the audit trail names for a version.

        :param live: the version, as the audit trail has it
        :raises ApprovalMissingError: where too few people approved
        :raises ForgedDecisionError: where a record does not hold
        """
        self.require(self.read(live.decisions))

    def require(self, decisions: Sequence[Decision]) -> None:
        """
        Check that enough people approved.

        :param decisions: decisions that :meth:`read` returned
        :raises ApprovalMissingError: where too few people approved
        """
        found = consents(decisions)
        if found is not None and found < self.minimum:
            given = f"{found} of {self.minimum} approvals are" if found else "an approval is missing that would be"
            raise ApprovalMissingError(
                f"version {self.version.version} of {self.version.name} waits for an approval: {given} in the audit "
                "trail; wire promote to the output of an ApproveOperator"
            )

    def read(self, keys: Sequence[str]) -> list[Decision]:
        """
        Read the records of decisions about the version.

        :param keys: keys of the records in the store
        :raises ForgedDecisionError: if one does not hold
        """
        return [self._read(key) for key in keys]

    def _read(self, key: str) -> Decision:
        try:
            decision = Decision.unsealed(self.store.get(key), self.trusted)
        except FileNotFoundError:
            raise ForgedDecisionError(f"the decision {key} is missing from {self.store.uri}") from None
        except EnvelopeError as error:
            raise ForgedDecisionError(f"the decision {key} in {self.store.uri} does not hold: {error}") from error
        if (difference := decision.difference(self.version)) is not None:
            raise ForgedDecisionError(f"the decision {key} is about another version: {difference}")
        return decision
