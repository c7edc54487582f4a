"""
Ranks that are killed while four train: how long the others stand still, and how many steps are done again.

The train step runs as its launcher runs it, with and without the state in memory; beside it torchft's replicas, which
stay alive and heal each other. All train the same model of rows, on gloo.
"""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.record import Record, compare
from benchmarks.training import restart
from benchmarks.training.programs.servers import mlflow_server
from mlops.contract.refs import Ref, ref_from_wire
from mlops.contract.step import StepInput, python_path
from mlops_provider.deployment import Deployment
from mlops_provider.launchers.base import step_argv
from mlops_provider.launchers.process import step_environment

KILLS = int(os.environ.get("BENCHMARK_KILLS", "10"))
RANKS = 4
SETTLED_STEPS = 20
WAIT_SECONDS = 120.0

RECIPE = f"""
import os
import time

import torch
from torch import nn
from torch.nn import functional


def build_model(config):
    first, second = nn.Linear(config.num_features, 256), nn.Linear(256, 256)
    return nn.Sequential(first, nn.GELU(), second, nn.GELU(), nn.Linear(256, 1), nn.Flatten(-2))


def note(batch, progress):
    name = "-".join(os.environ[key] for key in ("TORCHELASTIC_RESTART_COUNT", "RANK"))
    with open(os.path.join(os.environ["{restart.CALLS_VARIABLE}"], f"{{name}}-{{os.getpid()}}"), "a") as file:
        file.write(f"{{progress!r}} {{time.time()}}\\n")
    return torch.ones_like(batch.weights)
"""


def measure(home: Path, scratch: Path, environment: Mapping[str, str]) -> list[Record]:
    folder = scratch / "peers"
    recipe = folder / "home/include/restart"
    recipe.mkdir(parents=True)
    (recipe / "model.py").write_text(RECIPE)
    python = home / ".venv/training/bin/python"
    told = subprocess.run(
        [python, "-m", "benchmarks.training.programs.restart_parts", "features", folder / "store"],
        cwd=home, env=dict(environment), stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    features = ref_from_wire(json.loads(told.stdout.splitlines()[-1]))
    with mlflow_server(folder, python) as port:
        url = f"http://127.0.0.1:{port}"
        deployment = Deployment(
            home=folder / "home", store=f"file://{folder}/store", tracking_uri=url, tracking_url=url,
            pythons={"training": python},
        )  # fmt: skip
        kept = ours(home, deployment, features, folder, peers=1)
        stored = ours(home, deployment, features, folder, peers=0)
    healed = torchft(home, python, folder / "torchft", environment)
    print(f"kept {kept}\nstored {stored}\ntorchft {healed}")
    shared: dict[str, Any] = {"unit": "s", "baseline": "torchft's survivors"}
    return [
        compare("training.peers_stall", ours=statistics.median(kept[0]), baseline_value=statistics.median(healed),
                target=1.0, **shared),
        compare("training.peers_longest_stall", ours=max(kept[0]), baseline_value=max(healed), target=1.0, **shared),
        compare("training.peers_steps_redone", unit="steps", ours=sum(kept[1]),
                baseline="the store's checkpoints alone", baseline_value=max(1, sum(stored[1])), target=0.0),
    ]  # fmt: skip


def ours(
    home: Path, deployment: Deployment, features: Ref, folder: Path, *, peers: int
) -> tuple[list[float], list[int]]:
    """Seconds from each kill to the next step that all have done, and steps done again."""
    config = restart.settings() | {
        "model": "include.restart.model:build_model",
        "model_args": {},
        "loss": None,
        "curriculum": "include.restart.model:note",
        "global_batch": 1024,
        "processes": RANKS,
        "max_restarts": KILLS,
        # Its steps would be taken for the training's.
        "self_test": "never",
    }
    config["checkpoint"] = config["checkpoint"] | {"every_steps": None, "peers": peers}
    num_steps = config["epochs"] * -(-1_000_000 // 1024)
    place, notes = folder / f"peers-{peers}", folder / f"notes-{peers}"
    place.mkdir()
    notes.mkdir()
    run = replace(restart.IDENTITY, run_key=f"peers-{peers}")
    document = StepInput(step="train", run=run, config=config, ref=features)
    (place / "input.json").write_text(document.dump())
    python = str(deployment.pythons["training"])
    argv = step_argv(python, str(place / "input.json"), RANKS, max_restarts=KILLS, hang_seconds=60)
    variables = step_environment(deployment, place / "result.json", os.environ)
    path = python_path(home)
    variables |= {restart.CALLS_VARIABLE: str(notes), "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    chance, stalls, redone = random.Random(1), [], []
    with (place / "log.txt").open("w") as log:
        process = subprocess.Popen(argv, cwd=home, env=variables, stdout=log, stderr=log)
    try:
        for _ in range(KILLS):
            wait_for(lambda: settled(notes, num_steps), process, place / "log.txt")
            ranks = newest(notes, num_steps)
            time.sleep(chance.uniform(0, 0.3))
            killed = time.time()
            os.kill(chance.choice(list(ranks)), signal.SIGKILL)
            wait_for(lambda: set(newest(notes, num_steps)).isdisjoint(ranks) and settled(notes, num_steps, 2),  # noqa: B023
                     process, place / "log.txt")  # fmt: skip
            before = [read(file, num_steps) for file in notes.iterdir() if int(file.name.split("-")[2]) in ranks]
            after = newest(notes, num_steps)
            furthest = max(steps[-1][0] for steps in before)
            stalls.append(max(steps[1][1] for steps in after.values()) - killed)
            # The step whose loss was there last was under way.
            redone.append(max(0, furthest - min(steps[0][0] for steps in after.values())))
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(60)
    return stalls, redone


def read(file: Path, num_steps: int) -> list[tuple[int, float]]:
    """Steps whose loss was computed, and when; without the one that settles DDP's buckets."""
    lines = [line.split() for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]
    return [(round(float(progress) * num_steps), float(at)) for progress, at in lines[1:]]


def newest(notes: Path, num_steps: int) -> dict[int, list[tuple[int, float]]]:
    """The ranks of the last start, by process."""
    names = [file.name.split("-") for file in notes.iterdir()]
    last = max((int(name[0]) for name in names), default=0)
    return {int(name[2]): read(notes / "-".join(name), num_steps) for name in names if int(name[0]) == last}


def settled(notes: Path, num_steps: int, steps: int = SETTLED_STEPS) -> bool:
    ranks = newest(notes, num_steps)
    return len(ranks) == RANKS and all(len(each) >= steps for each in ranks.values())


def torchft(home: Path, python: Path, folder: Path, environment: Mapping[str, str]) -> list[float]:
    """Seconds from each kill to the survivors' next step that counted."""
    folder.mkdir()
    program = [str(python), "-m", "benchmarks.training.programs.torchft_replica"]
    found = folder / "lighthouse"

    def start(name: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (folder / f"log-{name}").open("a") as log:
            return subprocess.Popen([*program, *arguments], cwd=home, env=dict(environment), stdout=log, stderr=log)

    def counted(number: int) -> list[tuple[float, int]]:
        """Of a replica's process, when each step ended, and how many took part."""
        file = folder / f"r{number}-{replicas[number].pid}"
        lines = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
        return [(float(line[1]), int(line[2])) for line in lines if len(line) == 3]

    def together() -> bool:
        return all(sum(taking == RANKS for _, taking in counted(each)) >= SETTLED_STEPS for each in range(RANKS))

    def next_step(number: int, since: float) -> float:
        return next((at for at, taking in counted(number) if at > since and taking < RANKS), 0.0)

    lighthouse = start("lighthouse", "lighthouse", str(found))
    replicas: list[subprocess.Popen[bytes]] = []
    chance, stalls = random.Random(1), []
    try:
        wait_for(found.exists, lighthouse, folder / "log-lighthouse")
        address = found.read_text()
        replicas = [start(f"r{number}", address, f"r{number}", str(folder)) for number in range(RANKS)]
        for _ in range(KILLS):
            wait_for(together, lighthouse, folder / "log-r0")
            time.sleep(chance.uniform(0, 0.3))
            victim, killed = chance.randrange(RANKS), time.time()
            replicas[victim].kill()
            replicas[victim].wait()
            others = [number for number in range(RANKS) if number != victim]
            wait_for(lambda: all(next_step(number, killed) for number in others))  # noqa: B023
            stalls.append(max(next_step(number, killed) for number in others) - killed)
            replicas[victim] = start(f"r{victim}", address, f"r{victim}", str(folder))
    finally:
        for each in [*replicas, lighthouse]:
            each.kill()
            each.wait()
    return stalls


def wait_for(
    happened: Callable[[], object], process: subprocess.Popen[bytes] | None = None, log: Path | None = None
) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not happened():
        ended = process is not None and process.poll() is not None
        if ended or time.monotonic() > deadline:
            raise RuntimeError(f"it does not go on:\n{log.read_text()[-3000:] if log else ''}")
        time.sleep(0.02)
