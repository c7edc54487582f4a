"""What earlier runs have made, as the input of a step that is tried out alone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from obstore.store import ObjectStore

from mlops.contract.refs import INPUT, DatasetRef, Ref
from mlops.contract.section import SpecError
from mlops.contract.step import EXPERIMENTS, STEPS, StepInput, deprecation_key
from mlops_provider.committed import DAMAGED, Committed, committed_below, folders, read_bytes, read_committed, read_json
from mlops_provider.experiments.arguments import SPIN
from mlops_provider.gathering import gather


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


def snapshot(store: ObjectStore, pipeline: str, user: str, version: str) -> Input:
    """
    Find a snapshot that the pipeline's runs have taken, or a user's experiments with it.

    :param version: or a beginning that no other one has
    :raises SpecError: naming what there is, where none or several are meant
    """
    found = made_by(store, "ingest", pipeline, user)

    async def read(each: Committed) -> Ref | None:
        try:
            return await read_committed(store, each.place)
        except DAMAGED:  # it hides no other
            return None

    refs = [ref for ref in asyncio.run(gather(read, found)) if isinstance(ref, DatasetRef)]
    meant: dict[str, DatasetRef] = {}
    # Of several places of one version always the same, so that what was made of it is found again.
    for ref in sorted(refs, key=lambda ref: not ref.place.startswith("pipelines/")):
        if ref.version.startswith(version):
            meant.setdefault(ref.version, ref)
    if len(meant) == 1:
        (ref,) = meant.values()
        if (mark := asyncio.run(read_json(store, deprecation_key(ref.name, ref.version)))) is not None:
            raise SpecError(
                f"dataset {version}: {ref.version[:12]} is deprecated, {mark['reason']!r}; start from another one, or "
                "from one of your own by as_of"
            )
        return Input.at(store, ref.place, "validate")
    if meant:
        raise SpecError(f"dataset {version}: it may mean {' or '.join(sorted(meant))}; give more of it")
    newest = ", ".join(dict.fromkeys(ref.version[:12] for ref in reversed(refs[-3:])))
    known = f"the newest are {newest}: see mlops datasets list" if newest else "none was taken yet"
    raise SpecError(f"dataset {version}: {pipeline} has no such snapshot; {known}")


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
        told = asyncio.run(read_bytes(store, ref.artifacts[INPUT].key)) if INPUT in ref.artifacts else None
        try:
            run = StepInput.load((told or b"").decode()).run
        except DAMAGED:
            key = f"{place}: its artifact {INPUT!r}"
            raise SpecError(f"{key} is damaged, or gone from the store: mlops store verify says what else") from None
        start, end = (datetime.fromisoformat(each).astimezone(UTC) for each in (run.interval_start, run.interval_end))
        return cls(ref=ref, interval=(start, end))
