"""What earlier runs have made, as the input of a step that is tried out alone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from obstore.store import ObjectStore

from mlops.contract.refs import INPUT, Ref
from mlops.contract.section import SpecError
from mlops.contract.step import EXPERIMENTS, STEPS, StepInput
from mlops_provider.committed import Committed, committed_below, folders, read_bytes, read_committed
from mlops_provider.experiments.arguments import SPIN


def made_by(store: ObjectStore, step: str, pipeline: str, user: str) -> Sequence[Committed]:
    """
    Find what a step has made in runs of the pipeline and in a user's experiments with it, but for what was only spun.

    :return: the newest interval last, and of each interval what was committed last
    """
    tried = [
        folder
        for folder in folders(store, f"{EXPERIMENTS}/{user}")
        if (name := folder.rpartition("/")[2]).partition(".")[0] == pipeline and name != f"{pipeline}.{SPIN}"
    ]

    async def find() -> list[Committed]:
        return [
            each
            for folder in (f"pipelines/{pipeline}", *tried)
            for each in await committed_below(store, f"{folder}/{step}")
        ]

    return sorted(asyncio.run(find()))


@dataclass(frozen=True, kw_only=True, slots=True)
class Input:
    """What a step takes, and the data interval that it was made of."""

    ref: Ref
    interval: tuple[datetime, datetime]

    @classmethod
    def at(cls, store: ObjectStore, place: str, step: str) -> Input:
        """
        :param step: that takes it
        :raises SpecError: if nothing is committed there, or something that the step does not take
        """
        is_key = not {"", ".", ".."} & {*place.split("/")}
        ref = asyncio.run(read_committed(store, place)) if is_key else None
        if ref is None:
            raise SpecError(f"nothing is committed at {place}: give the place of a step's result, FOLDER/STEP/KEY")
        takes = STEPS[step].consumes
        if not isinstance(ref, takes):
            makers = [name for name, kind in STEPS.items() if kind.produces in takes]
            raise SpecError(f"{place} is not what {step} takes: that is made by {' or '.join(makers)}")
        told = asyncio.run(read_bytes(store, ref.artifacts[INPUT].key))
        if told is None:
            raise SpecError(f"{ref.artifacts[INPUT].key} is gone from the store: mlops store verify says what else")
        run = StepInput.load(told.decode()).run
        start, end = (datetime.fromisoformat(each).astimezone(UTC) for each in (run.interval_start, run.interval_end))
        return cls(ref=ref, interval=(start, end))
