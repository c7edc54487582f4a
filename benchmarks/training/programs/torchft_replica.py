"""
``python -m benchmarks.training.programs.torchft_replica LIGHTHOUSE NAME FOLDER``: one of torchft's replicas, which goes
on when others are killed and fetches its state from one of them when it is started again. ``lighthouse FILE``: where
they meet; its address is in the file.

Each step that counted is a line of ``FOLDER/<name>-<pid>``: its number, when it ended, and how many took part.
"""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo
from torchft.coordination import LighthouseServer

from benchmarks.training.programs.contenders import CLIP_NORM, optimizer_of
from benchmarks.training.programs.workloads import NUM_FEATURES, WORKLOADS

REPLICAS = 4
WORKLOAD = WORKLOADS["mlp_1024"]


def lighthouse(file: Path) -> None:
    """Tuned: by default a lost replica is waited for five seconds."""
    server = LighthouseServer(
        bind="[::]:0", min_replicas=1, join_timeout_ms=100, quorum_tick_ms=20, heartbeat_timeout_ms=500
    )
    draft = file.with_suffix(".new")
    draft.write_text(server.address())
    draft.rename(file)
    while True:
        time.sleep(60)


def replica(address: str, name: str, folder: Path) -> None:
    torch.set_num_threads(1)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    module = WORKLOAD.build()
    own = optimizer_of(module)

    def load(state: dict[str, Any]) -> None:
        module.load_state_dict(state["model"])
        own.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=5)),
        load_state_dict=load,
        state_dict=lambda: {"model": module.state_dict(), "optimizer": own.state_dict()},
        min_replica_size=1,
        timeout=timedelta(seconds=5),
        quorum_timeout=timedelta(seconds=30),
        connect_timeout=timedelta(seconds=5),
        heartbeat_interval=timedelta(milliseconds=50),
        replica_id=name,
        store_addr="127.0.0.1",
        store_port=store.port,
        rank=0,
        world_size=1,
        lighthouse_addr=address,
        hostname="127.0.0.1",
        init_sync=False,
    )
    model, optimizer = DistributedDataParallel(manager, module), Optimizer(manager, own)
    chance = torch.Generator().manual_seed(1)
    with (folder / f"{name}-{os.getpid()}").open("a") as log:
        while True:
            features = torch.randn(WORKLOAD.global_batch // REPLICAS, NUM_FEATURES, generator=chance)
            labels = (features[:, 0] > 0).float()
            optimizer.zero_grad()
            WORKLOAD.losses(model, features, labels).mean().backward()
            torch.nn.utils.clip_grad_norm_(module.parameters(), CLIP_NORM)
            before = manager.current_step()
            optimizer.step()
            if manager.current_step() > before:
                log.write(f"{manager.current_step()} {time.time()} {manager.num_participants()}\n")
                log.flush()


if __name__ == "__main__":
    if sys.argv[1] == "lighthouse":
        lighthouse(Path(sys.argv[2]))
    else:
        replica(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
