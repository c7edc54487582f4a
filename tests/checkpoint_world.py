"""
A world in which several process groups checkpoint at one place, one store operation at a time.

The real code of checkpoints runs against a store in memory. Each process group is a thread; before each operation on
the store chance decides who goes on, who sleeps, who is killed, whether a bit flips or the oldest objects expire. At
each removal, resume and save the world compares what is there with what was promised.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from mlops.contract.checkpoint_listing import is_copy
from mlops.contract.checkpoint_markers import DamagedCheckpointError, Saved
from mlops.store import Store, Stored
from mlops.trainer.checkpoint import checkpoints as checkpoints_module
from mlops.trainer.checkpoint.checkpoints import Checkpoints
from mlops.trainer.checkpoint.generation import Generation, GenerationGoneError, LostGenerationError
from mlops.trainer.checkpoint.planning import CheckpointError
from mlops.trainer.checkpoint.writing import Save, Writer
from mlops.trainer.parallel import Ranks

PLACE = "pipelines/toy/train/x"
_EPOCH_STEPS = 2


class PromiseBrokenError(AssertionError):
    """What the world has seen, and what came before."""


class Killed(BaseException):
    """SIGKILL."""


@dataclass(eq=False, kw_only=True)
class Group:
    """One process group."""

    name: str
    lineage: str
    turn: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    asleep_until: int = 0
    killed: bool = False
    ended: bool = False
    listed_at: int = 0
    """When it last listed the place."""
    checkpoints: Checkpoints | None = None

    @property
    def distrusted(self) -> set[str]:
        return self.checkpoints._writer.distrusted if self.checkpoints else set()

    @property
    def generation(self) -> int:
        seat = self.checkpoints._seat if self.checkpoints else None
        return seat[0] if seat else -1


@dataclass(kw_only=True)
class Written:
    """A committed checkpoint or copy, as it was."""

    saved: Saved
    objects: dict[str, bytes]
    flipped: bool = False
    expired_at: int | None = None

    @property
    def order(self) -> tuple[int, int]:
        return self.saved.step, self.saved.generation


class World:
    """
    :param seed: decides everything
    :param groups: process groups that may begin, in all
    """

    def __init__(self, seed: int, *, keep_latest: int = 2, groups: int = 4, saves: int = 5) -> None:
        self.chance = random.Random(seed)
        self.seed, self.keep_latest, self.groups_left, self.saves = seed, keep_latest, groups, saves
        self.objects: dict[str, bytes] = {}
        self.written_at: dict[str, int] = {}
        self.written: dict[str, Written] = {}
        self.groups: list[Group] = []
        self.now = 0
        self.trace: list[str] = []
        self.failure: BaseException | None = None
        self.floor = 0
        """The step that the living process group has safe."""
        self.damages_left = self.chance.choice((0, 0, 1, 2, 3))
        self._done = threading.Event()

    def run(self) -> None:
        """:raises PromiseBrokenError: with the trace"""
        self.begin()
        self.groups[0].turn.release()
        assert self._done.wait(60), f"seed {self.seed} stands still"
        if self.failure is not None:
            lines = "\n".join(self.trace[-120:])
            raise PromiseBrokenError(f"seed {self.seed}: {self.failure!r}\n{lines}") from self.failure

    # Scheduling.

    def begin(self, lineage: str | None = None) -> None:
        self.groups_left -= 1
        name = chr(ord("A") + len(self.groups))
        group = Group(name=name, lineage=lineage or name)
        self.groups.append(group)
        self.trace.append(f"-- {name} begins, of {group.lineage}")
        threading.Thread(target=self._live, args=(group,), daemon=True).start()

    def point(self, group: Group, what: str) -> None:
        """Before each operation."""
        if group.killed or self.failure is not None:
            raise Killed
        self.now += 1
        self._strike(group)
        self._hand_over(group)
        if group.killed or self.failure is not None:
            raise Killed
        self.trace.append(f"{self.now} {group.name} {what}")

    def _live(self, group: Group) -> None:
        group.turn.acquire()
        begins_again = True
        try:
            train(self, group)
        except (Killed, GenerationGoneError) as end:
            self.trace.append(f"-- {group.name} ends: {type(end).__name__}")
        except LostGenerationError as end:
            self.trace.append(f"-- {group.name} ends: {end}")
            begins_again = False
        except BaseException as error:
            if not group.killed:  # where it is, a save that it waited for has failed
                self.failure = self.failure or error
        group.ended = True
        if begins_again and self.groups_left > 0 and self.failure is None:
            # The agent begins another one in place, or the task's next try does.
            self.begin(group.lineage if self.chance.random() < 0.5 else None)
        self._hand_over(group)

    def _hand_over(self, group: Group) -> None:
        runnable = [one for one in self.groups if not one.ended]
        if not runnable:
            self._done.set()
            return
        awake = [one for one in runnable if one.asleep_until <= self.now] or runnable
        stays = group in awake and not group.ended and self.chance.random() < 0.8
        chosen = group if stays else self.chance.choice(awake)
        if chosen is not group:
            chosen.turn.release()
            if not group.ended:
                group.turn.acquire()

    def _strike(self, group: Group) -> None:
        lot = self.chance.random()
        if lot < 0.03 and self.groups_left > 0:
            self.begin()
            if self.chance.random() < 0.7:  # the network parts them: this one seems dead for a while
                group.asleep_until = self.now + self.chance.randint(20, 150)
        elif lot < 0.05:
            group.asleep_until = self.now + self.chance.randint(10, 120)
        elif lot < 0.06 and group.checkpoints is not None:
            group.killed = True
        elif lot < 0.08 and self.damages_left > 0 and self.written:
            self.damages_left -= 1
            self.chance.choice((self._flip, self._flip, self._expire))()

    def _flip(self) -> None:
        there = [one for one in self.written.values() if self.whole(one)]
        if there:
            struck = self.chance.choice(there)
            key = self.chance.choice(sorted(struck.objects))
            data = bytearray(self.objects[key])
            data[self.chance.randrange(min(16, len(data)))] ^= 1
            self.objects[key] = bytes(data)
            struck.flipped = True
            self._after_damage(f"a bit of {key} flips")

    def _expire(self) -> None:
        """As a bucket's rule does: the oldest objects."""
        keys = sorted(self.objects, key=lambda key: self.written_at[key])
        for key in keys[: self.chance.randint(1, 4)]:
            del self.objects[key]
            for one in self.written.values():
                if key in one.objects:
                    one.expired_at = self.now
            self.trace.append(f"{self.now} expired {key}")
        self._after_damage("expiry")

    def _after_damage(self, what: str) -> None:
        self.trace.append(f"{self.now} {what}")
        self.floor = min(self.floor, self.progress())

    # What is there.

    @property
    def living(self) -> Group:
        """The one that has the place."""
        return max(self.groups, key=lambda group: group.generation)

    def whole(self, one: Written) -> bool:
        return all(self.objects.get(key) == data for key, data in one.objects.items())

    def progress(self) -> int:
        return max((one.saved.step for one in self.all_whole()), default=0)

    def all_whole(self, *, copies: bool = False) -> list[Written]:
        return [one for name, one in self.written.items() if is_copy(name) is copies and self.whole(one)]

    def weights_of(self, step: int) -> list[Written]:
        return [one for one in self.written.values() if one.saved.step == step and self.whole(one)]

    def committed(self, key: str, data: bytes) -> None:
        saved = Saved.load(data, key)
        keys = [key, saved.index.key, *(file.key for file in saved.files)]
        if all(name in self.objects for name in keys):
            self.written[saved.folder] = Written(saved=saved, objects={name: self.objects[name] for name in keys})

    # What is promised.

    def removing(self, group: Group, keys: Sequence[str]) -> Callable[[], None]:
        """Called before a removal; what it returns, after it."""
        struck = [one for one in self.written.values() if self.whole(one) and set(keys) & one.objects.keys()]
        latest = self._latest_to(group)
        unseen = False
        for one in struck:
            newer = [other for other in latest if other.order > one.order]
            # Where it keeps one, and a bit of that flips after it was written, it cannot know.
            unseen |= not all(self.whole(other) for other in newer)
            if not is_copy(one.saved.folder) and len(newer) < self.keep_latest:
                raise PromiseBrokenError(f"{group.name} removes {one.saved.folder}, with {len(newer)} newer ones")
        best = {one.saved.best_step for one in latest[-self.keep_latest :] if self.whole(one)} - {None}
        had = {step for step in best if step is not None and self.weights_of(step)}

        def after() -> None:
            for step in had:
                if not self.weights_of(step):
                    raise PromiseBrokenError(f"{group.name} removes the last of the best weights, of step {step}")
            if unseen:
                self.floor = min(self.floor, self.progress())
            if self.progress() < self.floor:
                raise PromiseBrokenError(f"{group.name} takes the training back from {self.floor} to {self.progress()}")

        return after

    def _latest_to(self, group: Group) -> list[Written]:
        """The checkpoints, oldest first, as far as a process group can know: bits that flip later it has not read."""
        known = [
            one
            for name, one in self.written.items()
            if not is_copy(name)
            and name not in group.distrusted
            and (self.whole(one) or one.flipped or (one.expired_at or 0) > group.listed_at)
        ]
        return sorted(known, key=lambda one: one.order)


class MemoryStore(Store):
    """A process group's view of the world's objects."""

    def __init__(self, world: World, group: Group) -> None:
        self.uri, self._root = "memory://", None
        self._world, self._group = world, group

    def put(self, key: str, data: bytes | Path, *, durable: bool = True) -> None:
        assert isinstance(data, bytes)
        self._world.point(self._group, f"puts {key}")
        self._put(key, data)

    def put_large(self, key: str, memory: memoryview, part_bytes: int) -> None:
        self._world.point(self._group, f"writes {key}")
        self._put(key, bytes(memory))

    def put_new(self, key: str, data: bytes) -> bool:
        self._world.point(self._group, f"puts, if new, {key}")
        if new := key not in self._world.objects:
            self._put(key, data)
        return new

    def _put(self, key: str, data: bytes) -> None:
        self._world.objects[key], self._world.written_at[key] = data, self._world.now
        if key.endswith("/checkpoint.json"):
            self._world.committed(key, data)

    def get(self, key: str) -> bytes:
        self._world.point(self._group, f"gets {key}")
        if key not in self._world.objects:
            raise FileNotFoundError(key)
        return self._world.objects[key]

    def get_range(self, key: str, start: int, num_bytes: int) -> bytearray:
        return bytearray(self.get(key)[start : start + num_bytes])

    def size(self, key: str) -> int | None:
        data = self._world.objects.get(key)
        return None if data is None else len(data)

    def stored(self, prefix: str) -> Sequence[Stored]:
        self._world.point(self._group, f"lists {prefix}")
        self._group.listed_at = self._world.now
        return [
            Stored(key=key, num_bytes=len(data), modified=datetime.fromtimestamp(0, UTC))
            for key, data in sorted(self._world.objects.items())
            if key.startswith(f"{prefix}/")
        ]

    def folders(self, prefix: str) -> Sequence[str]:
        self._world.point(self._group, f"lists folders of {prefix}")
        inner = (key.removeprefix(f"{prefix}/") for key in self._world.objects if key.startswith(f"{prefix}/"))
        return sorted({name.partition("/")[0] for name in inner if "/" in name})

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._world.point(self._group, f"deletes {key}")
            after = self._world.removing(self._group, [key])
            self._world.objects.pop(key, None)
            after()


def state_of(step: int) -> dict[str, Any]:
    return {"model": {"w": torch.tensor([step, 7 * step])}, "optimizer": {"m": torch.tensor([0.5 * step])}}


def metric_of(step: int) -> int:
    """Of an epoch's end. Like a training's: the same whoever does it, at times better than before."""
    return step * 2654435761 % 97


def train(world: World, group: Group) -> None:
    """A process group's life: what the training loop does, without the training."""
    store = MemoryStore(world, group)
    group.checkpoints = checkpoints = Checkpoints(
        store=store, place=PLACE, ranks=Ranks(), keep_latest=world.keep_latest, retry_seconds=0.0
    )
    try:
        step, history = _resume(world, group, checkpoints)
    except DamagedCheckpointError as error:  # removed while it was read: the agent tries again
        world.trace.append(f"-- {group.name} fails: {error}")
        return
    ranking = sorted(history, key=lambda at: -metric_of(at))
    kept = checkpoints.choose_weights(ranking)
    lost = set(ranking[: ranking.index(kept.step)] if kept else ranking)
    for _ in range(world.saves):
        step += 1
        if step % _EPOCH_STEPS == 0:
            history = [*history, step]
        left = [at for at in sorted(history, key=lambda at: -metric_of(at)) if at not in lost]
        damages_left = world.damages_left
        checkpoints.save(step, state_of(step), {"history": history}, best_step=left[0] if left else None)
        try:
            checkpoints.wait()
        except CheckpointError as error:
            world.trace.append(f"-- {group.name}: {error}")
            continue
        if world.living is group:
            if damages_left == world.damages_left and world.progress() < step:
                raise PromiseBrokenError(f"{group.name} has saved step {step}, and it is not there")
            world.floor = max(world.floor, world.progress())
    if left:
        _check_best(world, group, checkpoints, left)


def _resume(world: World, group: Group, checkpoints: Checkpoints) -> tuple[int, list[int]]:
    before = world.all_whole()
    saved = checkpoints.newest()
    there = [one.order for one in before if world.whole(one)]
    found = (0, 0) if saved is None else (saved.step, saved.generation)
    if found < max(there, default=(0, 0)):
        raise PromiseBrokenError(f"{group.name} goes on from {found}, and {max(there)} is whole")
    if saved is None:
        return 0, []
    tensors = state_of(0)
    checkpoints.load(saved, tensors)
    for part, name in (("model", "w"), ("optimizer", "m")):
        if not torch.equal(tensors[part][name], state_of(saved.step)[part][name]):
            raise PromiseBrokenError(f"{group.name} goes on from other bits than those of step {saved.step}")
    if world.living is group:
        world.floor = max(world.floor, min(saved.step, world.progress()))
    return saved.step, list(saved.meta["history"])


def _check_best(world: World, group: Group, checkpoints: Checkpoints, ranking: Sequence[int]) -> None:
    before = {step: world.weights_of(step) for step in ranking}
    saved = checkpoints.choose_weights(ranking)
    for step in ranking:
        if saved is not None and saved.step == step:
            return
        if any(world.whole(one) for one in before[step]):
            raise PromiseBrokenError(
                f"{group.name} has the best weights of {saved and saved.step}, and {step} is whole"
            )


def in_turn(writer: Writer, job: Save) -> Future[None]:
    """A save in the thread that asks for it: the store's operations are what takes turns."""
    done = Future[None]()
    writer._run(job, done)
    return done


class OfLineage(Generation):
    """Of the process group that asks: the environment is shared by all threads."""

    @classmethod
    def take(cls, store: Store, place: str, lineage: str | None = None) -> Generation:
        assert isinstance(store, MemoryStore)
        return super().take(store, place, store._group.lineage)


def explore(seeds: Sequence[int], patch: Callable[[Any, str, Any], None]) -> int:
    """
    :param patch: as ``monkeypatch.setattr``
    :return: operations on the store, in all
    """
    patch(Writer, "start", in_turn)
    patch(checkpoints_module, "Generation", OfLineage)
    total = 0
    for seed in seeds:
        world = World(seed, keep_latest=1 + seed % 3, groups=3 + seed % 2)
        world.run()
        total += world.now
    return total
