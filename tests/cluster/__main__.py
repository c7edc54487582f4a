"""The cluster's process: ``python -m cluster <folder> <configuration.json>``, in the foreground until it is stopped."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from pathlib import Path

from cluster.running import ISOLATED


def main() -> None:
    """Go into namespaces of its own, then serve."""
    parser = argparse.ArgumentParser(prog="python -m cluster", description="A stand-in Kubernetes cluster for tests.")
    parser.add_argument("folder", type=Path, help="where pods' files, the log and the kubeconfig are kept")
    parser.add_argument("configuration", type=Path, help="JSON: images, nodes, how fast things are retried")
    parser.add_argument("--stop-with-stdin", action="store_true", help="stop when standard input is closed")
    arguments = parser.parse_args()
    if os.getpid() != 1:
        # The first process of a PID namespace takes all others with it: no pod outlives the cluster, whatever happens.
        os.execvp(ISOLATED[0], [*ISOLATED, sys.executable, "-m", "cluster", *sys.argv[1:]])
    asyncio.run(_serve(arguments.folder.resolve(), arguments.configuration, arguments.stop_with_stdin))


async def _serve(folder: Path, configuration: Path, stop_with_stdin: bool) -> None:
    from cluster.config import Configuration
    from cluster.control_plane import ControlPlane

    loop = asyncio.get_running_loop()
    watcher = asyncio.PidfdChildWatcher()  # without a thread for each container
    watcher.attach_loop(loop)
    asyncio.set_child_watcher(watcher)
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    if stop_with_stdin:
        loop.add_reader(sys.stdin.fileno(), stopped.set)
    plane = ControlPlane(folder, Configuration.read(configuration))
    port = await plane.start()
    print(f"ready {port}", flush=True)
    await plane.run_until(stopped)


if __name__ == "__main__":
    main()
