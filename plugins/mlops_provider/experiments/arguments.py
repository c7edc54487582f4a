"""The arguments of ``mlops run``, ``mlops submit``, ``mlops submitted`` and ``mlops spin``."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import get_args

from mlops.contract.refs import SHORTEST_VERSION, VERSION_PATTERN
from mlops.contract.rest import Priority, RunKind
from mlops.contract.section import EXPERIMENT_NAME_PATTERN
from mlops.contract.step import EXPERIMENT_STEPS
from mlops_provider.spec_file import SUFFIX, pipeline_files

SPIN = "spin"
"""Name of the experiment with what ``mlops spin`` has made, until it makes it again."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Of ``mlops run``."""
    add_request_arguments(parser)
    parser.add_argument(
        "--launcher",
        default="process",
        help="how the steps run: process on this machine, pod in the cluster as the pipeline's pods say, or another "
        "package's launcher (default: %(default)s)",
    )
    parser.add_argument("--store", help="(default: the deployment's)")


def add_submit_arguments(parser: argparse.ArgumentParser) -> None:
    add_request_arguments(parser)
    parser.add_argument(
        "--priority",
        choices=get_args(Priority),
        help="where more runs of the pipeline wait than may run: low ones begin last (default: normal)",
    )
    parser.add_argument(
        "--code",
        action="store_true",
        help="send the recipe of your project along, committed or not: its code counts in place of that in Airflow, "
        "whose deployment must take it ([mlops] experiment_code)",
    )
    parser.add_argument("--follow", action="store_true", help="print its log as it comes, and wait for the end")


def add_submitted_arguments(parser: argparse.ArgumentParser) -> None:
    _complete(parser.add_argument("pipeline", nargs="?", help="its name (default: those of all)"))
    parser.add_argument("--by", metavar="USER", help="who asked for them (default: everybody)")
    parser.add_argument("--state", choices=("queued", "running", "success", "failed"), help="(default: any)")
    parser.add_argument(
        "--kind",
        choices=get_args(RunKind),
        default="experiment",
        help="what mlops submit has asked for, the pipeline's own runs, or models taken back (default: %(default)s)",
    )
    parser.add_argument("--most", type=_positive, default=20, metavar="N", help="the newest N (default: %(default)s)")
    parser.add_argument("--watch", action="store_true", help="show it anew every few seconds, until all have ended")


def add_request_arguments(parser: argparse.ArgumentParser) -> None:
    """What is to be tried out: see :class:`mlops_provider.experiments.request.Request`."""
    _complete(parser.add_argument("pipeline", help=f"its name, or its file *{SUFFIX}"))
    parser.add_argument(
        "--as-of",
        metavar="DATE",
        help="of the data: the newest data interval that had ended by then, a date or an instant of ISO 8601, in the "
        "pipeline's timezone where it names none (default: now, or the pipeline's end_date where that is over)",
    )
    parser.add_argument(
        "--dataset",
        metavar="VERSION",
        type=_version,
        help="start from this snapshot of the pipeline, or of your experiments with it, in place of one of --as-of: "
        f"its version, or the beginning, {SHORTEST_VERSION} digits at least (mlops datasets list)",
    )
    parser.add_argument(
        "--until", choices=EXPERIMENT_STEPS, default=EXPERIMENT_STEPS[-1], help="the last step (default: %(default)s)"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="STEP.KEY=VALUE",
        help="another value for a setting, as YAML; may be given several times: --set train.learning_rate=3e-4",
    )
    parser.add_argument(
        "--seeds",
        type=_positive,
        default=1,
        metavar="N",
        help="train and evaluate with N seeds, from train.seed on, and say how much the metrics vary",
    )
    parser.add_argument(
        "--sample",
        metavar="SHARE",
        help="train on a share of the samples, such as 0.1; validation and test stay whole (features.sample)",
    )
    parser.add_argument(
        "--name",
        type=_name,
        help="keeps the results apart from those of other names, in experiments/USER/PIPELINE.NAME",
    )


def add_spin_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("step", choices=[step for step in EXPERIMENT_STEPS if step != "tune"])
    pipeline = parser.add_argument(
        "pipeline",
        metavar="PIPELINE[@DATE]",
        help=f"its name, or its file *{SUFFIX}; the step takes what was made last of the newest data interval, or of "
        "the one that had ended by DATE",
    )
    _complete(pipeline)
    parser.add_argument("--input", metavar="PLACE", help="take what is committed at this place of the store instead")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="another value for a setting of the step, as YAML; may be given several times: --set epochs=1",
    )
    watching = parser.add_mutually_exclusive_group()
    watching.add_argument(
        "--pdb",
        action="store_true",
        help="run it as one process in this terminal: breakpoint() works, and the debugger opens where the step fails, "
        "or where Ctrl-C finds it",
    )
    watching.add_argument(
        "--profile", type=Path, metavar="FILE.svg", help="write a flame graph of all its processes, by py-spy"
    )
    parser.add_argument("--store", help="(default: the deployment's)")


def _complete(pipeline: argparse.Action) -> None:
    """Have a shell complete the names of pipelines (argcomplete)."""

    def names(parsed_args: argparse.Namespace, **_: object) -> list[str]:
        return [file.name.removesuffix(SUFFIX) for file in pipeline_files(parsed_args.home / "dags")]

    pipeline.completer = names  # type: ignore[attr-defined]


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a number of 1 or more, got {text!r}")
    return int(text)


def _version(text: str) -> str:
    if not re.fullmatch(VERSION_PATTERN, text):
        raise argparse.ArgumentTypeError(f"must be {SHORTEST_VERSION} to 64 hexadecimal digits, got {text!r}")
    return text


def _name(text: str) -> str:
    if not re.fullmatch(EXPERIMENT_NAME_PATTERN, text):
        raise argparse.ArgumentTypeError(
            f"must be 100 lower-case letters, digits and underscores at most, got {text!r}"
        )
    if text == SPIN:
        raise argparse.ArgumentTypeError(f"{SPIN!r} is where mlops spin puts what it makes; take another name")
    return text
