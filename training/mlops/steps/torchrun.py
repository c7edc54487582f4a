"""
``python -m mlops.steps.torchrun [OPTIONS] -m mlops.steps INPUT.json``: torchrun with restarts, a watch over hung
ranks, and an error that names the rank that failed first.

Alone it is the only node. With ``--rdzv-endpoint HOST:PORT`` it is one of ``--nnodes``, for a pod each; the node on
HOST holds the rendezvous, and the others end, to be retried, when it is lost. With ``--nnodes MIN:MAX`` and no endpoint
it runs MAX nodes on this machine and holds the rendezvous itself.

It ends with its launcher, and takes its workers with it. torch is not imported for work that is committed already.
"""

from __future__ import annotations

import argparse
import logging
import os
import socket
import sys
import tempfile
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from mlops.contract.refs import Ref
from mlops.contract.step import (
    GRACE_VARIABLE,
    INTERRUPTED,
    RESULT_PATH_VARIABLE,
    STORE_VARIABLE,
    Failure,
    StepInput,
    read_result,
    scratch_parent,
    write_result,
)
from mlops.elastic.workers import PRELOAD, prepare
from mlops.process import ProcessSettings, allow_open_files, die_with_parent, open_files_of
from mlops.steps.execution import find_committed, report
from mlops.steps.sent_recipes import with_sent_recipes
from mlops.store import Store
from mlops.store_errors import StoreError

if TYPE_CHECKING:
    from mlops.elastic.agent import Node
    from mlops.elastic.rendezvous import Meeting

logger = logging.getLogger("mlops")


def main() -> int:
    die_with_parent()
    arguments = _parse(sys.argv[1:])
    # The process that workers are forked from is this one's child, not the launcher's.
    os.environ["TORCHELASTIC_RUN_ID"] = arguments.rdzv_id
    here = arguments.rdzv_endpoint is not None or arguments.nnodes[1] == 1
    outcome = report(lambda document, deployment: _begin(document, deployment, arguments, here))
    if outcome is not None:
        return 1 if isinstance(outcome, Failure) else 0
    if here:
        prepare()
    from mlops.elastic.nodes import Interrupted, run_local_nodes, run_node

    result_path = Path(os.environ[RESULT_PATH_VARIABLE])
    grace_seconds = float(os.environ.get(GRACE_VARIABLE, "30"))
    ended: Ref | Failure | Interrupted | None
    if not here:
        ended = run_local_nodes(arguments.nnodes, _node_command(arguments), grace_seconds)
        if isinstance(ended, Failure):
            write_result(result_path, ended)
        return 0 if isinstance(read_result(result_path), Ref) else 1
    with tempfile.TemporaryDirectory(prefix="gang-", dir=scratch_parent()) as scratch:
        ended = run_node(*_seat(arguments, grace_seconds, Path(scratch)))
    if isinstance(ended, Interrupted):
        return INTERRUPTED
    if ended is not None:
        write_result(result_path, ended)
    return 1 if isinstance(ended, Failure) else 0


def _begin(document: StepInput, deployment: ProcessSettings, arguments: argparse.Namespace, here: bool) -> Ref | None:
    """
    Prepare this process for the work, and check whether it is done.

    :return: the ref that is already committed, None if there is none
    """
    # Before the workers and their parent are started: they inherit it.
    world_size = arguments.nnodes[1] * arguments.nproc_per_node
    allow_open_files(open_files_of(world_size), f"a training of {world_size} processes")
    if here and PRELOAD in sys.modules:  # forked with them: it forks in its turn, while it has one thread only
        prepare()
    done = find_committed(document, deployment)
    if done is None:  # the workers inherit it
        with_sent_recipes(document, deployment)
    return done


def _seat(arguments: argparse.Namespace, grace_seconds: float, scratch: Path) -> tuple[Node, Meeting]:
    from mlops.elastic.agent import Node
    from mlops.elastic.notes import Notes
    from mlops.elastic.rendezvous import LOOPBACK, Meeting

    alone = arguments.rdzv_endpoint is None
    endpoint = arguments.rdzv_endpoint or f"{LOOPBACK}:0"
    if arguments.host_store and arguments.local_addr:
        # Its own name may not be known yet, where names take a moment to spread.
        endpoint = f"{arguments.local_addr}:{endpoint.rpartition(':')[2]}"
    node = Node(
        name=arguments.node_name,
        program=arguments.program,
        processes=arguments.nproc_per_node,
        max_restarts=arguments.max_restarts,
        hang_seconds=arguments.hang_seconds or None,
        grace_seconds=grace_seconds,
        scratch=scratch,
        keep=_keep(arguments.program[-1], arguments.node_name),
        notes=Notes(_store, _place(arguments.program[-1]), arguments.node_name),
    )
    meeting = Meeting(
        run_id=arguments.rdzv_id,
        endpoint=endpoint,
        host_store=True if alone else arguments.host_store,
        min_nodes=arguments.nnodes[0],
        max_nodes=arguments.nnodes[1],
        local_addr=LOOPBACK if alone else arguments.local_addr,
        join_seconds=arguments.join_seconds,
        keep_alive_seconds=arguments.keep_alive_seconds,
    )
    return node, meeting


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="mlops.steps.torchrun", allow_abbrev=False)
    parser.add_argument("--nnodes", type=_bounds, default=(1, 1), help="nodes, N or MIN:MAX")
    parser.add_argument("--nproc-per-node", type=int, default=1, help="workers of each node, as many on all")
    parser.add_argument("--max-restarts", type=int, default=0, help="in a row without an optimizer step more")
    parser.add_argument("--hang-seconds", type=float, default=0.0, help="without progress; 0: nobody looks")
    parser.add_argument("--rdzv-id", default="gang", help="the same on all nodes")
    parser.add_argument("--rdzv-endpoint", help="HOST:PORT of the node that holds the rendezvous")
    parser.add_argument(
        "--host-store",
        action=argparse.BooleanOptionalAction,
        default=_first_of_job(),
        help="hold it here, whatever HOST says; of a Kubernetes Job's pods the first one does",
    )
    parser.add_argument("--local-addr", help="address of this node for the others; its host name where not given")
    parser.add_argument("--node-name", default=socket.gethostname(), help="in errors")
    parser.add_argument("--join-seconds", type=float, default=600.0, help="to wait for MIN nodes")
    parser.add_argument("--keep-alive-seconds", type=float, default=6.0, help="a node silent for so long is lost")
    parser.add_argument("program", nargs=argparse.REMAINDER, help="-m MODULE ARGUMENT... or SCRIPT ARGUMENT...")
    # argparse would take the program's -m for one of ours.
    start = next((at for at, word in enumerate(argv) if word == "-m" or word.endswith(".py")), len(argv))
    arguments = parser.parse_args([*argv[:start]])
    arguments.program = list(argv[start:])
    if len(arguments.program) < 2:
        parser.error("give the program: -m MODULE INPUT.json or SCRIPT.py INPUT.json")
    return arguments


def _first_of_job() -> bool | None:
    index = os.environ.get("JOB_COMPLETION_INDEX")
    return None if index is None else index == "0"


def _bounds(nodes: str) -> tuple[int, int]:
    low, _, high = nodes.partition(":")
    bounds = int(low), int(high or low)
    if not 1 <= bounds[0] <= bounds[1]:
        raise argparse.ArgumentTypeError(f"{nodes!r} is neither N >= 1 nor MIN:MAX with 1 <= MIN <= MAX")
    return bounds


def _node_command(arguments: argparse.Namespace) -> Callable[[int, str], Sequence[str]]:
    def command(number: int, endpoint: str) -> Sequence[str]:
        places = ["--rdzv-endpoint", endpoint, "--no-host-store", "--local-addr", endpoint.partition(":")[0]]
        places += ["--node-name", f"{arguments.node_name}/{number}", "--keep-alive-seconds", "3"]
        ours = sys.argv[1 : len(sys.argv) - len(arguments.program)]
        return [sys.executable, "-m", "mlops.steps.torchrun", *ours, *places, *arguments.program]

    return command


def _store() -> Store:
    return Store(os.environ[STORE_VARIABLE])


def _place(document: str) -> str:
    return StepInput.load(Path(document).read_text()).place


def _keep(document: str, node: str) -> Callable[[Sequence[Path]], None]:
    """Return a function that stores a diagnosis beside the step's results."""

    def keep(files: Sequence[Path]) -> None:
        store = _store()
        folder = f"{_place(document)}/diagnosis/{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{node.replace('/', '-')}"
        try:
            for file in files:
                store.put(f"{folder}/{file.name}", file)
        except StoreError as error:  # it must not hide what it is about
            logger.warning("the stacks could not be kept: %s", error)
        else:
            logger.info("the stacks of all ranks are kept at %s", folder)

    return keep


if __name__ == "__main__":
    sys.exit(main())
