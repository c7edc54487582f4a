"""One node's agent: torchrun's restart loop over our workers, with our view of what ends, restarts and hangs."""

from __future__ import annotations

import logging
import math
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torch.distributed.elastic.agent.server.api import RunResult, SimpleElasticAgent, WorkerGroup, WorkerState
from torch.distributed.elastic.agent.server.api import WorkerSpec as TorchSpec

from mlops.contract.outages import MLFLOW
from mlops.contract.refs import Ref
from mlops.contract.step import LINEAGE_VARIABLE, RESULT_PATH_VARIABLE, Failure
from mlops.contract.training_events import EventKind
from mlops.elastic import flight
from mlops.elastic.diagnosis import Watch, accuse, describe, hung
from mlops.elastic.failure_attribution import (
    Ended,
    MismatchError,
    blames_others,
    committed,
    first_failure,
    is_of_code,
    result_path,
    say_the_same,
    symptom,
)
from mlops.elastic.memory import memory_kills, say_kills
from mlops.elastic.node_memory import NodeMemory
from mlops.elastic.notes import Notes
from mlops.elastic.pace import SLOW_FACTOR, Pace
from mlops.elastic.peers import Peers
from mlops.elastic.rendezvous import Rendezvous
from mlops.elastic.stacks import doing, last_stacks, top_frames
from mlops.elastic.suspects import RankState
from mlops.elastic.workers import Worker, end
from mlops.trainer.health import DIRECTORY_VARIABLE, REST

logger = logging.getLogger(__name__)

MONITOR_SECONDS = 0.1
LOST_GRACE_SECONDS = 0.5
"""For the rest of a gang that lost a rank. Without it they can save nothing: the last checkpoint is older."""
_LOST_FACTOR, _LOST_SECONDS = 1.5, 1.0
"""A connection breaks at once, but a node counts as lost only after its keep-alive: in so many of them, and this."""
_PATIENCE_SECONDS = 60.0
_SETTLE_SECONDS = 2.0
"""For the rank that is the cause to end too, where those that ended only speak of others."""
_WATCH_SECONDS = 1.0
_FINISH_SECONDS = 90.0
"""For the other nodes to send their last metrics, once the work is committed."""
_LEAVE_SECONDS = 10.0
"""For the nodes to end together, when all are done."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """One node's share of a gang."""

    name: str
    program: Sequence[str]
    """As after ``python``: ``-m module argument...`` or ``script.py argument...``."""
    processes: int
    max_restarts: int
    """
    In a row without an optimizer step more than before: a long run may lose any number of workers. One is enough where
    the same error comes back at the same step. That a node is lost does not count.
    """
    hang_seconds: float | None
    """Without progress of any rank for so long the gang hangs; None: nobody looks."""
    grace_seconds: float
    """From SIGTERM to SIGKILL, to write a checkpoint."""
    scratch: Path
    keep: Callable[[Sequence[Path]], None]
    """Called with the stacks of a gang that hung, and what torch recorded of its collectives."""
    notes: Notes


class Agent(SimpleElasticAgent):
    """
    Starts the workers of a node, restarts them with the others', and ends with ``outcome``.

    ``run`` is torch's: rendezvous, start, then ``_monitor_workers`` until it says SUCCEEDED, or FAILED or UNHEALTHY
    with no restart left. A restart is a new rendezvous, of as many nodes as there are.
    """

    # Of the round that runs.
    _folder: Path
    _world_size: int
    _watch: Watch
    _peers: Peers
    _pace: Pace
    _done_at: float
    _broken_at: float
    _failed_at: float

    def __init__(self, node: Node, rendezvous: Rendezvous) -> None:
        # All nodes have as many ranks, so each can count its own. torch's agents would tell each other, and wait a
        # minute for a node that was lost since the round began, to fail with it.
        os.environ["TORCH_ELASTIC_WORKER_IDENTICAL"] = "1"
        spec = TorchSpec(
            role="train",
            local_world_size=node.processes,
            rdzv_handler=rendezvous,
            entrypoint=node.program[-1],
            max_restarts=node.max_restarts,
            monitor_interval=MONITOR_SECONDS,
            local_addr=rendezvous.address,
        )
        super().__init__(spec, exit_barrier_timeout=_LEAVE_SECONDS, shutdown_timeout=max(1, int(node.grace_seconds)))
        self.outcome: Ref | Failure | None = None
        """The committed ref, on the node whose rank 0 committed it; what failed last; None where neither is known."""
        self.slow: dict[int, float] = {}
        """Ranks that were found slow last, with how many times as long they work as the others."""
        self._node = node
        self._rendezvous_handler = rendezvous
        self._workers: list[Worker] = []
        self._memory = NodeMemory(node.processes)
        self._furthest = -1
        self._charged: tuple[int, Failure] | None = None
        """The last: at which step, and for what."""
        self._next_watch = 0.0
        self._memory_kills = memory_kills()
        self._broken = False
        self._lineage = ""

    @property
    def has_met(self) -> bool:
        """Whether it has taken part in a round."""
        return bool(self._lineage)

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        node, seats = self._node, worker_group.workers
        self._folder = node.scratch / f"round-{self._rendezvous_handler.round}"
        self._folder.mkdir()
        self._world_size = seats[0].world_size
        self._lineage = self._rendezvous_handler.lineage()
        self._broken = False
        self._done_at = self._broken_at = self._failed_at = math.inf
        self._workers = [
            Worker(
                rank=seat.global_rank,
                program=node.program,
                environment=os.environ | self._environment(worker_group, seat.local_rank),
                prefix=f"[rank {seat.global_rank}] " if seat.global_rank else "",
            )
            for seat in seats
        ]
        assert worker_group.group_rank is not None
        assert worker_group.group_world_size is not None
        self._peers = Peers(worker_group.store, node=worker_group.group_rank, num_nodes=worker_group.group_world_size)
        pids = {worker.rank: worker.pid for worker in self._workers}
        self._watch = Watch(self._folder, pids, hang_seconds=node.hang_seconds or 0.0, node=node.name)
        self._pace = Pace(
            worker_group.store,
            node=worker_group.group_rank,
            num_nodes=worker_group.group_world_size,
            pulse=self._watch.pulse,
        )
        if worker_group.group_rank == 0:
            nodes = worker_group.group_world_size
            on = f" on {nodes} nodes" if nodes > 1 else ""
            self._note("started", f"{self._world_size} process{'es' if self._world_size > 1 else ''}{on}")
        return dict(enumerate(pids.values()))

    def note_interrupted(self, by: signal.Signals) -> None:
        """Note that this node was told to end, where it took part in a round."""
        if self.has_met:
            self._note("interrupted", f"{self._node.name} got {by.name}", of=self._node.name)

    def _note(self, kind: EventKind, said: str, *, of: str = "") -> None:
        self._node.notes.add(self._lineage, self._rendezvous_handler.round, kind, said, of=of)

    def _environment(self, group: WorkerGroup, local_rank: int) -> dict[str, str]:
        seat = group.workers[local_rank]
        return {
            "RANK": str(seat.global_rank),
            "LOCAL_RANK": str(local_rank),
            "WORLD_SIZE": str(seat.world_size),
            "LOCAL_WORLD_SIZE": str(self._node.processes),
            "GROUP_RANK": str(group.group_rank),
            "GROUP_WORLD_SIZE": str(group.group_world_size),
            "MASTER_ADDR": str(group.master_addr),
            "MASTER_PORT": str(group.master_port),
            "TORCHELASTIC_RUN_ID": self._rendezvous_handler.get_run_id(),
            "TORCHELASTIC_RESTART_COUNT": str(self._rendezvous_handler.round),
            "TORCHELASTIC_MAX_RESTARTS": str(self._node.max_restarts),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            RESULT_PATH_VARIABLE: str(result_path(self._folder, seat.global_rank)),
            DIRECTORY_VARIABLE: str(self._folder),
            LINEAGE_VARIABLE: self._lineage,
            **flight.environment(self._folder),
            **self._memory.environment(),
        }

    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        grace = self._node.grace_seconds
        if worker_group.state == WorkerState.HEALTHY:  # to take a node in, as soon as a step is done: no hurry
            grace = max(grace, self._node.hang_seconds or _PATIENCE_SECONDS)
        if self._broken:
            self._memory.fill(self._folder, self._workers)
        end(self._workers, signal.SIGTERM, LOST_GRACE_SECONDS if self._broken else grace)

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None:
        end(self._workers, death_sig, self._node.grace_seconds)

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        codes = {worker.rank: worker.exit_code for worker in self._workers}
        failed = [worker for worker in self._workers if worker.exit_code is not None and self._has_failed(worker)]
        if all(code == 0 for code in codes.values()) and not failed:
            self.outcome = committed(self._folder, list(codes))
            self._done_at = min(self._done_at, time.monotonic())
            late = isinstance(self.outcome, Ref) and time.monotonic() > self._done_at + _FINISH_SECONDS
            # Before that this node is needed: rank 0 may fail yet, while it publishes.
            if self._peers.all_done() or late:
                return self._succeeded()
        if failed:
            return self._failed(failed)
        if self._node_is_gone():
            return self._succeeded() if isinstance(self.outcome, Ref) else self._go_on_without()
        if self._node.hang_seconds and time.monotonic() > self._next_watch:
            self._next_watch = time.monotonic() + _WATCH_SECONDS
            if (failure := self._hang()) is not None:
                return self._charge(failure, "hung")
            self._say_slow()
        return RunResult(state=WorkerState.HEALTHY)

    def _succeeded(self) -> RunResult:
        if isinstance(self.outcome, Ref):
            self._note("ended", f"its result is {self.outcome.place}")
        ranks = [seat.global_rank for seat in self._worker_group.workers]
        return RunResult(state=WorkerState.SUCCEEDED, return_values=dict.fromkeys(ranks))

    def _failed(self, failed: Sequence[Worker]) -> RunResult:
        ranks = [worker.rank for worker in self._workers]
        if (ref := committed(self._folder, ranks)) is not None:
            self.outcome = ref
            return self._succeeded()
        for worker in failed:
            worker.drain()
        ended = [
            Ended(
                rank=worker.rank,
                exit_code=worker.exit_code or 0,
                tail=list(worker.tail),
                was=self._was(worker.rank),
                doing=self._did(worker) if (worker.exit_code or 0) < 0 else "",
            )
            for worker in failed
        ]
        causes = [one for one in ended if not one.interrupted]
        if not causes:
            logger.info("interrupted: going on from the checkpoint that was just written")
            return self._restart_free_of_charge()
        failure = self._cause(causes)
        if failure is None or failure.type == MismatchError.__name__:
            self._failed_at = min(self._failed_at, time.monotonic())
            if len(failed) < len(self._workers) and time.monotonic() < self._failed_at + _SETTLE_SECONDS:
                return RunResult(state=WorkerState.HEALTHY)
        failure = failure or self._blamed(causes)
        if self._worker_group.group_world_size != 1 and blames_others(failure):
            if self._node_is_gone() or self._rendezvous_handler.is_closed():
                return self._go_on_without()
            if self._awaits_loss():
                return RunResult(state=WorkerState.HEALTHY)
        return self._charge(failure)

    def _has_failed(self, worker: Worker) -> bool:
        """Also where it ended well, but before its work was done: then its heartbeat stopped within a step."""
        if worker.exit_code != 0:
            return True
        pulse = self._watch.pulse(worker.rank)
        return pulse is not None and pulse.step >= 0 and pulse.phase != REST

    def _cause(self, ended: Sequence[Ended]) -> Failure | None:
        kills = say_kills(self._memory_kills, memory_kills())
        return first_failure(self._folder, ended, world_size=self._world_size, node=self._node.name, kills=kills)

    def _blamed(self, ended: Sequence[Ended]) -> Failure:
        """What those that ended speak of: a rank of this node that still runs, and does not wait as the others do."""
        said = symptom(self._folder, ended, world_size=self._world_size, node=self._node.name)
        running = [worker.rank for worker in self._workers if worker.exit_code is None]
        if self._worker_group.group_world_size != 1 or not running:
            return said
        states = self._watch.examine(running)
        if all(state.waits for state in states):
            return said
        self._keep_stacks(states)
        return accuse(states, f"rank {said.details['rank']} gave up: {said.message}")

    def _did(self, worker: Worker) -> str:
        return doing(last_stacks(self._folder, worker.rank)).text

    def _node_is_gone(self) -> bool:
        return (self._worker_group.group_world_size or 0) > self._rendezvous_handler.num_nodes

    def _go_on_without(self) -> RunResult:
        logger.warning(said := "a node is lost or leaving: going on with the others")
        self._note("node_lost", said)
        self._broken = True
        return self._restart_free_of_charge()

    def _awaits_loss(self) -> bool:
        """Whether a node may be gone that does not count as lost yet."""
        self._broken = True  # where a new node restarts the gang before
        self._broken_at = min(self._broken_at, time.monotonic())
        patience = _LOST_FACTOR * self._rendezvous_handler.keep_alive_seconds + _LOST_SECONDS
        return time.monotonic() < self._broken_at + patience

    def _was(self, rank: int) -> str:
        pulse = self._watch.pulse(rank)
        return f" at step {pulse.step}, {pulse.phase}" if pulse and pulse.step >= 0 else ""

    def _restart_free_of_charge(self) -> RunResult:
        self._remaining_restarts += 1
        return RunResult(state=WorkerState.UNHEALTHY)

    def _charge(self, failure: Failure, kind: EventKind = "failed") -> RunResult:
        """Decide on a restart. torch makes it where ``_remaining_restarts`` allows."""
        furthest = self._watch.furthest()
        if furthest > self._furthest:
            self._furthest, self._remaining_restarts = furthest, self._node.max_restarts
        num_restarts = self._node.max_restarts - self._remaining_restarts
        # MLflow is asked for when all is trained: processes that start again would wait for it, and hold the machine.
        came_back = self._came_back(furthest, failure)
        if not failure.retryable or failure.outage == MLFLOW or came_back:
            self._remaining_restarts = 0
        self._charged = furthest, failure
        self.outcome = failure
        self._note(kind, failure.message)
        self._broken = self._remaining_restarts > 0
        if self._broken:
            logger.warning("%s", failure.message)
            logger.warning("restarting the gang; %d restarts left", self._remaining_restarts)
        elif came_back and is_of_code(failure):
            said = f"{failure.message}; the same came after a restart from the last checkpoint: it is not tried again"
            self.outcome = replace(failure, message=said, retryable=False)
        elif failure.retryable and self._node.max_restarts and failure.outage != MLFLOW:
            given_up = f"; given up after {num_restarts} restarts without a step more"
            self.outcome = replace(failure, message=failure.message + given_up)
        return RunResult(state=WorkerState.FAILED)

    def _came_back(self, step: int, failure: Failure) -> bool:
        """
        Whether it is the last failure again, at the same step. Before the first step what is not of code may wait for
        something; and of a script nobody knows how far it is.
        """
        if self._charged is None or (step < 0 and not (is_of_code(failure) and self._watch.knows())):
            return False
        last_step, last = self._charged
        return last_step == step and say_the_same(last, failure)

    def _hang(self) -> Failure | None:
        running = [worker.rank for worker in self._workers if worker.exit_code is None]
        seconds = self._watch.silent(running)
        if not self._peers.all_silent(seconds is not None):
            return None
        mine = self._watch.examine(running, all_seen=self._peers.await_seen)
        self._keep_stacks(mine)
        told = self._peers.gather([asdict(state) for state in mine])
        return hung([RankState(**state) for state in told], seconds or self._node.hang_seconds or 0.0)

    def _say_slow(self) -> None:
        """Once for each rank, and again where it has become as slow again."""
        slow = self._pace.slow([worker.rank for worker in self._workers])
        for rank, ratio in slow.items():
            if ratio >= SLOW_FACTOR * self.slow.get(rank, 0.0):
                self.slow[rank] = ratio
                said = (
                    f"rank {rank} is slow: data, forward pass and optimizer take it {ratio:.1f} times as long as the "
                    "others, who wait for it: look at its processor, GPU, disk and network"
                )
                logger.warning("%s", said)
                self._note("slow", said, of=f"rank-{rank}")

    def _keep_stacks(self, states: Sequence[RankState]) -> None:
        for state in states:
            logger.error("%s", "\n    ".join([describe(state), *top_frames(self._folder, state.rank)]))
        self._node.keep([*self._folder.glob("stacks-*"), *self._folder.glob("flight-*")])
