"""A gang: this process as one of its nodes, or as the parent of all of them on one machine."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from types import FrameType

from torch.distributed import DistError, TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.rendezvous.api import RendezvousClosedError, RendezvousError, RendezvousTimeoutError

from mlops.contract.refs import Ref
from mlops.contract.step import PARENT_VARIABLE, Failure
from mlops.elastic.agent import Agent, Node
from mlops.elastic.failure_attribution import NodesApartError, NodesLostError
from mlops.elastic.rendezvous import LOOPBACK, Meeting, Rendezvous, meet

logger = logging.getLogger(__name__)

_FAILURE_KEY = "mlops/failure"
_POLL_SECONDS = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class Interrupted:
    """The gang was asked to end, and has."""

    by: signal.Signals


def run_node(node: Node, meeting: Meeting) -> Ref | Failure | Interrupted | None:
    """
    Take part in a gang until it ends.

    :return: the ref on the node of rank 0, None on the others; what failed first, where that is known on any node
    """
    try:
        rendezvous = meet(meeting)
    except RendezvousError as error:
        return _apart(meeting, _unreachable(meeting, error))
    try:
        return _take_part(node, meeting, rendezvous)
    finally:
        rendezvous.fall_silent()
        node.notes.finish()


def _take_part(node: Node, meeting: Meeting, rendezvous: Rendezvous) -> Ref | Failure | Interrupted | None:
    agent = Agent(node, rendezvous)
    try:
        with _signals_raise():
            agent.run()
    except SignalException as interruption:
        agent.note_interrupted(interruption.sigval)
        # Not closed: the others go on without this node.
        with suppress(RendezvousError, DistError):  # its holder may be ending, too
            rendezvous.leave()
        return Interrupted(by=interruption.sigval)
    except RendezvousClosedError:
        return _failure_elsewhere(rendezvous)
    except RendezvousTimeoutError:
        want = f"{meeting.min_nodes} nodes" if meeting.min_nodes > 1 else "a node"
        what = f"{want} did not come together within {meeting.join_seconds:.0f} s"
        return Failure.of(NodesLostError(what)) if agent.has_met else _apart(meeting, what)
    except (RendezvousError, DistError) as error:
        return Failure.of(NodesLostError(_unreachable(meeting, error)))
    try:
        if isinstance(agent.outcome, Failure):
            rendezvous.key_value_store.set(_FAILURE_KEY, json.dumps(asdict(agent.outcome), default=str))
        rendezvous.shutdown()
    except (RendezvousError, DistError) as error:
        logger.warning("the other nodes could not be told how it ended: %s", error)
    return agent.outcome


def run_local_nodes(
    bounds: tuple[int, int], command: Callable[[int, str], Sequence[str]], grace_seconds: float
) -> Failure | None:
    """
    Run nodes as processes of this machine, and go on with those that live.

    This process holds the rendezvous, so that any node may be lost. A lost one is not replaced.

    :param bounds: least and most nodes
    :param command: argv of a node, given its number and the endpoint
    :return: what failed, where no node could say it
    """
    min_nodes, max_nodes = bounds
    store = TCPStore(LOOPBACK, 0, is_master=True, wait_for_workers=False)
    endpoint = f"{LOOPBACK}:{store.port}"
    environment = os.environ | {PARENT_VARIABLE: str(os.getpid())}
    nodes = [
        subprocess.Popen(command(number, endpoint), env=environment, start_new_session=True)
        for number in range(max_nodes)
    ]
    lost: set[int] = set()
    try:
        with _signals_raise():
            while any(node.poll() is None for node in nodes):
                for number, node in enumerate(nodes):
                    if (node.poll() or 0) < 0 and number not in lost:
                        lost.add(number)
                        logger.warning("node %d was killed by %s", number, signal.Signals(-node.returncode).name)
                if max_nodes - len(lost) < min_nodes:
                    what = f"{len(lost)} of {max_nodes} nodes were lost, and {min_nodes} are needed (train.nodes)"
                    return Failure.of(NodesLostError(what))
                time.sleep(_POLL_SECONDS)
    except SignalException:
        return None
    finally:
        _end(nodes, grace_seconds)
    return None


def _end(nodes: Sequence[subprocess.Popen[bytes]], grace_seconds: float) -> None:
    for node in nodes:
        if node.poll() is None:
            node.terminate()
    deadline = time.monotonic() + grace_seconds
    while any(node.poll() is None for node in nodes) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    for node in nodes:
        node.kill()
        node.wait()


def _failure_elsewhere(rendezvous: Rendezvous) -> Failure | None:
    # Closed by a node that ended: with a failure it left here, or done.
    store = rendezvous.key_value_store
    return Failure(**json.loads(store.get(_FAILURE_KEY))) if store.check([_FAILURE_KEY]) else None


def _apart(meeting: Meeting, what: str) -> Failure:
    is_fixed = meeting.min_nodes == meeting.max_nodes
    return Failure.of(NodesApartError(what, join_seconds=meeting.join_seconds, is_fixed=is_fixed))


def _unreachable(meeting: Meeting, error: RendezvousError | DistError) -> str:
    # torch's errors carry a stack of C++ frames.
    cause = str(error.__cause__ or error).partition("\n")[0]
    what = f"the rendezvous at {meeting.endpoint} cannot be reached: the node that holds it is gone or not there yet"
    return f"{what} ({cause})"


@contextmanager
def _signals_raise() -> Iterator[None]:
    """SIGTERM and SIGINT end what runs, once."""

    def stop(number: int, frame: FrameType | None) -> None:
        for other in signals:
            signal.signal(other, signal.SIG_IGN)
        name = signal.Signals(number)
        raise SignalException(f"got {name.name}", sigval=name)

    signals = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, stop) for number in signals}
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGTERM) is stop:
            for number, handler in before.items():
                signal.signal(number, handler)
