"""
Make lost objects again, to the same bits.

An object is replaced only by bytes of the digest that it was written with, and what was damaged stays under
``damaged/``. Killed anywhere, the next one finds an object missing instead of damaged, and goes on.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Final

from mlops.contract.code_files import code_digest
from mlops.contract.refs import INPUT, CheckpointRef, FeaturesRef, Ref, ReportRef
from mlops.contract.step import STEPS, BadConfigError, StepError, StepInput
from mlops.integrity.damage import Damage
from mlops.integrity.inventory import Inventory
from mlops.integrity.remedies import AGAIN, Remedy, Way, held_ref, tracked_copy
from mlops.reproduction.original import Original, read_environment
from mlops.reproduction.processes import Processes
from mlops.reproduction.workplace import LIBRARY_ROOT, Workplace, parallelise
from mlops.store import Store, ref_bytes

_TRAINED: Final = CheckpointRef.kind
_RENEWAL: Final = "training/mlops/steps/renewal.py"
"""File whose presence shows that a library's steps make missing objects again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Healed:
    """The result of one remedy."""

    damage: Damage
    healed: bool
    sentence: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Healer:
    store: Store
    inventory: Inventory
    home: Path
    """The project folder; only read."""
    tracking_uri: str
    pythons: Mapping[str, Path]
    """Interpreter of each runtime."""
    on_line: Callable[[str], None]
    """Function called with each line that a step writes."""

    def heal(self, remedies: Sequence[Remedy]) -> Iterator[Healed]:
        """Carry out remedies, in the order in which they need each other."""
        for remedy in remedies:
            if remedy.way in (Way.LINEAGE, Way.COPY, Way.TRACKING):
                yield self._put(remedy)
        left = [remedy for remedy in remedies if remedy.way is Way.STEP]
        failed: dict[str, str] = {}
        for place in _in_order({place for remedy in left for place in remedy.sources}):
            if wanted := [each.damage for each in left if place in each.sources and not self._is_whole(each.damage)]:
                failed[place] = self._again(place, wanted)
        for remedy in left:
            healed = self._is_whole(remedy.damage)
            why = "; ".join(failed[place] for place in remedy.sources)
            yield Healed(damage=remedy.damage, healed=healed, sentence="made again" if healed else why)

    def _put(self, remedy: Remedy) -> Healed:
        damage, source = remedy.damage, remedy.sources[0]
        try:
            data = self._bytes(remedy)
        except (StepError, FileNotFoundError, ValueError) as error:
            return Healed(damage=damage, healed=False, sentence=f"{source} cannot be used: {error}")
        self.store.set_aside(damage.key)
        if not self.store.put_new(damage.key, data):
            return Healed(damage=damage, healed=False, sentence="somebody else has written it meanwhile: verify again")
        return Healed(damage=damage, healed=True, sentence="put back")

    def _bytes(self, remedy: Remedy) -> bytes:
        """
        Return the bytes of a lost object.

        :raises ValueError: if they are not those that were written
        """
        damage, source = remedy.damage, remedy.sources[0]
        if remedy.way is Way.LINEAGE:
            ref = held_ref(self.store, str(PurePosixPath(damage.key).parent), source)
            if ref is None:
                raise ValueError("it does not hold the ref any more")
            return ref_bytes(ref)
        if remedy.way is Way.COPY:
            data = self.store.get(source)
        else:
            report = self.store.committed(source)
            assert isinstance(report, ReportRef), "its files were looked for"
            name = next(name for name, artifact in report.artifacts.items() if artifact.key == damage.key)
            found = tracked_copy(report, name, self.tracking_uri)
            data = found if isinstance(found, bytes) else b""
        if hashlib.sha256(data).hexdigest() != damage.expected:
            raise ValueError(f"its SHA-256 is not {damage.expected}")
        return data

    def _is_whole(self, damage: Damage) -> bool:
        try:
            return self.store.sha256(damage.key)[0] == damage.expected
        except FileNotFoundError:
            return False

    def _again(self, place: str, damage: Sequence[Damage]) -> str:
        """
        Run a step again at its own place.

        :return: the reason why something may still not be whole
        """
        aside: dict[str, str] = {}
        try:
            ref = self.store.committed(place)
            assert ref is not None, "it is in the inventory"
            document = StepInput.load(self.store.read(ref.artifacts[INPUT]).decode())
            runtime = STEPS[document.step].runtime
            if not (python := self.pythons[runtime]).exists():
                raise BadConfigError(f"the {runtime} runtime has no interpreter at {python}")
            with tempfile.TemporaryDirectory(prefix="mlops-heal-") as name:
                scratch = Path(name)
                processes = Processes(
                    store=self.store,
                    tracking_uri=self.tracking_uri,
                    workplace=self._workplace(place, ref, document, scratch),
                    scratch=scratch,
                    python=python,
                )
                world_size, num_threads = 0, None
                if isinstance(ref, CheckpointRef):
                    world_size, num_threads = ref.world_size, read_environment(self.store, ref)["num_threads"]
                # The step takes what is missing for what it has to make again.
                for each in damage:
                    if not self._is_whole(each) and (moved := self.store.set_aside(each.key)) is not None:
                        aside[each.key] = moved
                processes.run(document, world_size=world_size, num_threads=num_threads, on_line=self.on_line)
        except StepError as error:
            why = str(error)
        else:
            why = f"{document.step} at {place} was done again, and did not make these bytes"
        finally:
            for key, moved in aside.items():
                if not self.store.exists(key):
                    self.store.copy(moved, key)
        return why

    def _workplace(self, place: str, ref: Ref, document: StepInput, scratch: Path) -> Workplace:
        """
        Find the code that the step ran.

        :raises BadConfigError: if it is not known any more
        """
        if document.recipes:  # which may be anybody's
            raise BadConfigError(
                f"{document.step} ran code that was sent with an experiment, which healing does not run: send it again "
                "(mlops submit --code), and the experiment puts back what is gone"
            )
        here = Workplace(home=self.home, library=LIBRARY_ROOT, said="the project as it is")
        if _holds_code(self.home, document):
            return here
        refs = self.inventory.refs
        trainings = [each for each in self.inventory.made_from([place]) if each in refs and refs[each].kind == _TRAINED]
        for training in trainings[:1]:
            checkpoint = self.store.committed(training)
            assert isinstance(checkpoint, CheckpointRef)
            found = parallelise(Original.read(self.store, checkpoint), self.home, scratch)
            if not (found.library / _RENEWAL).is_file():
                found = replace(found, library=LIBRARY_ROOT)
            if isinstance(ref, FeaturesRef | CheckpointRef):
                setting = "feature_set" if isinstance(ref, FeaturesRef) else "model"
                found.use_recipe(self.store, ref, document.config[setting])
            if _holds_code(found.home, document):
                return found
        raise BadConfigError(
            f"the code that {document.step} ran is not that of {self.home}, in {', '.join(document.code_paths)}; "
            "check out the commit of then, and heal again"
        )


def _holds_code(home: Path, document: StepInput) -> bool:
    return not document.code or code_digest([home / path for path in document.code_paths]) == document.code


def _in_order(places: Collection[str]) -> list[str]:
    """
    Sort steps in the order in which they need each other; runs of one step newest first, as a source may have forgotten
    what it held.
    """
    newest = sorted(places, key=lambda place: PurePosixPath(place).name, reverse=True)
    return sorted(newest, key=lambda place: AGAIN.index(PurePosixPath(place).parent.name))
