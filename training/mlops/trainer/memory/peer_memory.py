"""The newest state of a training in memory: kept when a rank is lost, found again by those that are started then."""

from __future__ import annotations

import json
import logging
import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, distributed, nn

from mlops.contract.step import BadConfigError, StepError
from mlops.process import memory_free
from mlops.trainer.checkpoint.tree import Contents, TensorFacts, decode, encode, flatten, put_leaf
from mlops.trainer.health import DIRECTORY_VARIABLE
from mlops.trainer.memory.neighbour import Neighbour
from mlops.trainer.memory.recovery import Choice, Found, choose
from mlops.trainer.memory.seats import ORDER_PREFIX, PAGE_BYTES, Header, Note, Notes, Seat, seats_from_environment
from mlops.trainer.parallel import Ranks
from mlops.trainer.strategies.buffers import named_saved_buffers

_ALIGNED_BYTES: Final = 64
_BROADCAST_BYTES: Final = 256 << 20
_HEAR_STEPS: Final = 64
_CHANGE_SECONDS: Final = 60.0
"""For the optimizer to end the step that it is at."""

Snapshot = Callable[[], tuple[dict[str, Any], dict[str, Any]]]
"""The state's tensors, as a checkpoint takes them, and the document beside them."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Kept:
    """A state that was found, and is loaded."""

    tensors: dict[str, Any]
    document: Mapping[str, Any]


class PeerMemory:
    """
    Replicas hold equal states, so nothing is copied while all goes well. When a rank is lost, the others write their
    state to memory that outlives them, one of each node, and the processes that are started next go on from it.

    What differs by rank is the sum of its losses. Each rank notes it between forward and backward pass, in memory of
    its node and, by a message, on another node: whoever completes the step, its own gradient came later.

    The loop calls, on all ranks::

        kept = memory.newest(...)            # at the start
        with memory.guarding(...):
            for each step:
                memory.note(step, units)     # before others can complete the step
                memory.begin()               # the gradient is there
                memory.end(step, units)

    :param place: of the training in the store
    :param seats: of this node; none where nothing is kept
    """

    def __init__(self, ranks: Ranks, *, place: str, seats: Sequence[Seat] = (), seconds: float = 600.0) -> None:
        self._ranks, self._place, self._seats = ranks, place, seats
        self._round = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        self._steady = threading.Lock()
        self._torn = self._done = self._settled = False
        self._started = 0, 0
        self._snapshot: Snapshot | None = None
        self._neighbour: Neighbour | None = None
        self._noted: tuple[int, int] | None = None
        self._changing: list[tuple[Mapping[str, Tensor | None], str]] = []
        self._staged: list[Tensor] = []
        if not seats:
            return
        self._local_rank, self._node = int(os.environ["LOCAL_RANK"]), int(os.environ.get("GROUP_RANK", "0"))
        self._seat = seats[self._local_rank]
        self._notes = Notes(self._seat.notes)
        if int(os.environ.get("GROUP_WORLD_SIZE", "1")) > 1:
            try:
                self._neighbour = Neighbour(
                    rank=ranks.rank, world_size=ranks.world_size, per_node=len(seats), seconds=seconds
                )
            except OSError as error:
                raise StepError(
                    f"rank {ranks.rank} and its neighbours on other nodes do not reach each other: {error}. Let the "
                    "nodes connect to each other at any port, or set train.checkpoint.peers: 0"
                ) from error

    @classmethod
    def of(cls, ranks: Ranks, *, peers: int | None, place: str, seconds: float) -> PeerMemory:
        """
        :param peers: the setting; 0 keeps nothing
        :param seconds: for other ranks to come
        :raises BadConfigError: where it is 1, and the state is not one that all ranks have in their memory
        """
        usable = ranks.mesh is None and ranks.device.type == "cpu"
        if peers and not usable:
            kind = "a sharded layout" if ranks.mesh is not None else f"ranks on {ranks.device.type}"
            raise BadConfigError(
                f"train.checkpoint.peers: 1 is for replicas on CPUs, and this training has {kind}; remove it"
            )
        keeps = usable and peers != 0
        return cls(ranks, place=place, seats=seats_from_environment() if keeps else (), seconds=seconds)

    @property
    def keeps(self) -> bool:
        """Whether a state may be kept here."""
        return bool(self._seats)

    @property
    def guards(self) -> bool:
        """Whether the ranks note their losses."""
        return self._snapshot is not None

    def newest(self, room: Callable[[Contents], dict[str, Any]], *, after: int) -> Kept | None:
        """
        The newest state in memory, loaded. Called by all ranks.

        :param room: makes a state to be filled
        :param after: the step that the store has; -1 where it has none
        """
        if not self._seats:
            return None
        ranks = self._ranks
        headers = [slot.header() for slot in self._seat.slots]
        if not ranks.any(any(header is not None and header.step > after for header in headers))[0]:
            return None
        found = ranks.gather_objects(
            Found(node=self._node, local_rank=self._local_rank, headers=headers, notes=self._notes.read())
        )
        choice = ranks.from_leader(None if found is None else choose(found, self._place))
        if choice is None or choice.header.step <= after:
            return None
        content, header = self._content(choice)
        document = json.loads(bytes(content[PAGE_BYTES + header.num_bytes :]))
        state = _fill(room, document, content)
        return Kept(tensors=state, document={**document["state"], "loss_units": choice.loss_units})

    @contextmanager
    def guarding(
        self, model: nn.Module, snapshot: Snapshot, *, changing: Set[str], step: int, loss_units: int
    ) -> Iterator[None]:
        """
        Keep the state where what is within fails, or the agent asks for it.

        :param changing: names of buffers and frozen parameters that a forward pass changes, as those of a momentum
            teacher; the buffers that a checkpoint holds count as changing anyway, and others are not kept
        :param step: at which it starts
        :param loss_units: of all ranks, there
        """
        if not self._seats:
            yield
            return
        taught = [name for name, _ in model.named_parameters() if name in changing]
        modules = dict(model.named_modules())
        slots = [name.rpartition(".") for name in (*named_saved_buffers(model), *taught)]
        self._changing = [
            (modules[place]._buffers if own in modules[place]._buffers else modules[place]._parameters, own)
            for place, _, own in slots
        ]
        self._stage()
        self._started = step, loss_units
        self._snapshot = snapshot
        folder = os.environ.get(DIRECTORY_VARIABLE)
        pipe = Path(folder) / f"{ORDER_PREFIX}{self._ranks.rank}" if folder else None
        if pipe is not None:
            os.mkfifo(pipe)
            threading.Thread(target=self._obey, args=(pipe,), name="keep-state", daemon=True).start()
        try:
            yield
        except Exception:
            self.keep()
            raise
        self._snapshot = None
        if pipe is not None:
            with suppress(OSError):  # one that does not listen any more
                os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
            pipe.unlink()
        if self._neighbour is not None:
            self._neighbour.close()

    def note(self, step: int, units: int) -> None:
        """
        Costs some microseconds.

        :param units: the sum of this rank's losses in the epoch, should this step complete
        """
        if self._snapshot is None:
            return
        self._noted = step, units
        note = Note(self._round, self._ranks.rank, step, units)
        self._notes.put(note)
        if self._neighbour is not None:
            self._neighbour.send(note)

    def begin(self) -> None:
        """The state changes from here on."""
        if self._snapshot is not None:
            self._steady.acquire()
            self._torn = True

    def end(self, step: int, units: int) -> None:
        """The state is that of this step."""
        if self._snapshot is None:
            return
        if self._noted != (step, units):
            self.note(step, units)
        self._stage()
        if not self._settled:
            # All ranks have loaded what they went on from.
            self._settled = True
            for slot in self._seat.slots:
                slot.clear()
        if step % _HEAR_STEPS == 0:
            self._hear()
        self._torn = False
        self._steady.release()

    def keep(self) -> None:
        """Write the state to memory, unless another rank of the node has. From any thread."""
        in_main = threading.current_thread() is threading.main_thread()
        # Where a change itself fails, the state is neither the one nor the other.
        if self._snapshot is None or (in_main and self._torn) or not self._steady.acquire(timeout=_CHANGE_SECONDS):
            return
        try:
            if not self._done:
                self._done = True
                self._keep(*self._snapshot())
        finally:
            self._steady.release()

    def _keep(self, tensors: dict[str, Any], document: dict[str, Any]) -> None:
        self._hear()
        flat = flatten(tensors)
        tensors_held = sorted(flat.tensors.items())
        described = {
            "state": document,
            "tensors": [(flat.paths[key], tensor.shape, str(tensor.dtype)) for key, tensor in tensors_held],
            "values": [(flat.paths[key], encode(key, value)) for key, value in flat.values.items()],
        }
        data = json.dumps(described).encode()
        staged = {tensor.data_ptr(): copy for tensor, copy in zip(self._live(), self._staged, strict=True)}
        buffers = []
        for _, tensor in tensors_held:
            source = staged.get(tensor.data_ptr(), tensor).detach().contiguous()
            array: Any = source.reshape(-1).view(torch.uint8).numpy()
            view = memoryview(array)
            buffers += [view, memoryview(bytes(-len(view) % _ALIGNED_BYTES))]
        step, epochs = document["step"], len(document["history"])
        known = 0 if step == epochs * document["steps_per_epoch"] else None
        if step == self._started[0]:
            known = self._started[1]
        header = Header(
            round=self._round,
            rank=self._ranks.rank,
            world_size=self._ranks.world_size,
            step=step,
            epochs=epochs,
            loss_units=known,
            place=self._place,
            num_bytes=sum(map(len, buffers)),
            document_bytes=len(data),
        )
        # One rank of a node will do; one that is a step behind may come first.
        with self._seats[0].slots[0].locked():
            there = [entry for seat in self._seats if (entry := seat.newest()) is not None]
            if any(theirs.place == header.place and theirs.age >= header.age for _, theirs in there):
                return
            if header.num_bytes > (free := memory_free()):
                logger.warning(
                    "the state of step %d is not kept in memory: it takes %.0f MB, and %.0f MB are free; going back to "
                    "the last checkpoint",
                    *(header.step, header.num_bytes / 1e6, free / 1e6),
                )
                return
            mine = self._seat.newest()
            self._seat.slots[0 if mine is None else 1 - mine[0]].write(header, buffers, data)
            logger.info("the state of step %d is kept in memory", header.step)

    def _content(self, choice: Choice) -> tuple[Any, Header]:
        """The bytes of a slot of this node, or of another where some node has none."""
        first = choice.places[0]
        here = first if choice.missing else next(place for place in choice.places if place.node == self._node)
        content: Any = None
        header = choice.header
        if here.node == self._node:
            slot = self._seats[here.local_rank].slots[here.slot]
            found = slot.header()
            assert found is not None, "nobody writes before all have read"
            content, header = slot.content(found), found
        if choice.missing:
            header = choice.header
            if self._ranks.rank != first.rank:
                content = bytearray(PAGE_BYTES + header.num_bytes + header.document_bytes)
            whole = torch.frombuffer(content, dtype=torch.uint8)
            for start in range(PAGE_BYTES, len(whole), _BROADCAST_BYTES):
                part = whole[start : start + _BROADCAST_BYTES]
                distributed.broadcast(part, src=first.rank, group=self._ranks.cpu_group)
        return content, header

    def _stage(self) -> None:
        """Copy what a forward pass changes."""
        if not self._changing:
            return
        live = self._live()
        if [each.shape for each in live] == [each.shape for each in self._staged]:
            torch._foreach_copy_(self._staged, live)
        else:
            self._staged = [each.clone() for each in live]

    def _live(self) -> list[Tensor]:
        return [tensor for owner, name in self._changing if (tensor := owner[name]) is not None]

    def _hear(self) -> None:
        for note in self._neighbour.receive() if self._neighbour is not None else ():
            self._notes.put(note, ward=True)

    def _obey(self, pipe: Path) -> None:
        """Wait for the agent's order. A thread, for the main one may be in a collective that does not end."""
        with pipe.open("rb") as order:
            if order.read(1):
                self.keep()
                os._exit(1)


def _fill(room: Callable[[Contents], dict[str, Any]], document: Mapping[str, Any], content: Any) -> dict[str, Any]:
    """A state as it was written."""
    tensors = {
        tuple(path): TensorFacts(tuple(shape), getattr(torch, dtype.removeprefix("torch.")))
        for path, shape, dtype in document["tensors"]
    }
    values = {tuple(path): decode(value) for path, value in document["values"]}
    state = room(Contents(tensors=tensors, values=values))
    flat = flatten(state)
    targets = {flat.paths[key]: tensor for key, tensor in flat.tensors.items()}
    start = PAGE_BYTES
    with torch.no_grad():
        for path, facts in tensors.items():
            target, count = targets[path], math.prod(facts.shape)
            if count:
                source = torch.frombuffer(content, dtype=facts.dtype, count=count, offset=start)
                target.copy_(source.view(facts.shape))
            num_bytes = count * facts.dtype.itemsize
            start += num_bytes + -num_bytes % _ALIGNED_BYTES
    for key in flat.values:
        put_leaf(state, flat.paths[key], values[flat.paths[key]])
    return state
