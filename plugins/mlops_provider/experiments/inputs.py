"""What earlier runs have made, as the input of a step that is tried out alone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import obstore
from obstore.store import ObjectStore

from mlops.contract.refs import INPUT, Ref
from mlops.contract.section import SpecError
from mlops.contract.step import EXPERIMENTS, STEPS, StepInput
from mlops_provider.committed import read_bytes, read_committed
from mlops_provider.experiments.arguments import SPIN


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class Made:
    """Something that is committed."""

    end: datetime
    """Of the data interval."""
    at: datetime
    """When it was committed."""
    place: str


def made_by(store: ObjectStore, step: str, pipeline: str, user: str) -> Sequence[Made]:
    """
    Find what a step has made in runs of the pipeline and in a user's experiments with it, but for what was only spun.

    :return: the newest interval last, and of each interval what was committed last
    """
    found = []
    for folder in (f"pipelines/{pipeline}", *_experiments(store, pipeline, user)):
        for page in obstore.list(store, f"{folder}/{step}"):
            for entry in page:
                # .../features/20130208T050000Z-<digest>/ref.json: its presence is the commit.
                place, _, name = entry["path"].rpartition("/")
                if name == "ref.json":
                    stamp = place.rpartition("/")[2].rpartition("-")[0]
                    found.append(Made(end=datetime.fromisoformat(stamp), at=entry["last_modified"], place=place))
    return sorted(found)


def _experiments(store: ObjectStore, pipeline: str, user: str) -> Iterator[str]:
    for folder in obstore.list_with_delimiter(store, f"{EXPERIMENTS}/{user}")["common_prefixes"]:
        name = folder.rpartition("/")[2]
        if name.partition(".")[0] == pipeline and name != f"{pipeline}.{SPIN}":
            yield folder


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
        try:
            ref = asyncio.run(read_committed(store, place))
        except ValueError:  # no key of an object
            ref = None
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
