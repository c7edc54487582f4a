"""
``fault_server.py FOLDER CASES SECTION``: gangs of three ranks, each with an agent of its own, which meet with faults;
several at a time. CASES is a JSON list of ``[case, rank, hang_seconds]``, SECTION their ``train`` section; the outcomes
go to ``FOLDER/outcomes.json``.

One process for all, for it is the imports that take long. The workers are forked as any agent forks them.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mlops.contract.step import Failure, RunIdentity, StepInput
from mlops.elastic import pace, workers
from mlops.elastic.agent import Agent, Node
from mlops.elastic.notes import Notes
from mlops.elastic.rendezvous import LOOPBACK, Meeting, meet
from mlops.store import Store

PROGRAM = Path(__file__).with_name("fault_program.py")
RUN = RunIdentity(
    pipeline="faults", run_key="key", interval_start="", interval_end="", timezone="UTC", dag_id="faults",
    task_id="train", run_id="manual", try_number=1,
)  # fmt: skip
AT_ONCE, RANKS = 4, 3


def meet_with(folder: Path, section: dict[str, Any], case: str, rank: int, hang_seconds: float) -> dict[str, Any]:
    place = folder / f"{case}-{rank}"
    scratch = place / "scratch"
    scratch.mkdir(parents=True)
    document = place / "input.json"
    document.write_text(StepInput(step="train", run=RUN, config=section).dump())
    notes = Notes(lambda: Store(f"file://{place}/store"), "train", "node")
    node = Node(
        name="node",
        program=(str(PROGRAM), str(place), case, str(rank), str(document)),
        processes=RANKS,
        max_restarts=0,
        hang_seconds=hang_seconds,
        grace_seconds=1,
        scratch=scratch,
        keep=lambda files: None,
        notes=notes,
    )
    meeting = Meeting(
        run_id=f"{case}-{rank}", endpoint=f"{LOOPBACK}:0", host_store=True, min_nodes=1, max_nodes=1,
        local_addr=LOOPBACK, join_seconds=60, keep_alive_seconds=6,
    )  # fmt: skip
    rendezvous = meet(meeting)
    agent = Agent(node, rendezvous)
    try:
        agent.run()
    finally:
        rendezvous.fall_silent()
        notes.finish()
    sample = place / "sample"
    return {
        "case": case,
        "slow": list(agent.slow),
        "failure": asdict(agent.outcome) if isinstance(agent.outcome, Failure) else None,
        "noted": sorted(json.loads(file.read_text())["kind"] for file in (place / "store/train/events").iterdir()),
        "sample": sample.read_text() if sample.exists() else None,
    }


def main() -> None:
    folder, cases, section = Path(sys.argv[1]), json.loads(sys.argv[2]), json.loads(sys.argv[3])
    pace.PACE_SECONDS = 0.2
    workers.prepare()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        outcomes = list(pool.map(lambda case: meet_with(folder, section, *case), cases))
    (folder / "outcomes.json").write_text(json.dumps(outcomes, default=str))


if __name__ == "__main__":
    main()
