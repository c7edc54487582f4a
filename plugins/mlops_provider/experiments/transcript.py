"""What a person sees of an experiment: each line of its steps as it comes, and what came out."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from mlops.contract.refs import Ref
from mlops.contract.results import CHAMPION, Spread, verdict
from mlops_provider.deployment import Deployment
from mlops_provider.experiments.results import Training, address
from mlops_provider.links import run_url


class Transcript:
    """Implements :class:`mlops_provider.experiments.line.Listener`."""

    def __init__(self, console: Console, deployment: Deployment) -> None:
        self.console, self.deployment = console, deployment
        self._begun: dict[str, float] = {}

    def begins(self, what: str) -> None:
        self._begun[what] = time.monotonic()

    def line(self, what: str, line: str) -> None:
        self.console.print(f"{what:<9} │ {line}", style="dim", markup=False, soft_wrap=True)

    def ended(self, what: str, ref: Ref) -> None:
        seconds = time.monotonic() - self._begun[what]
        self.console.print(f"{what:<9} ✓ {seconds:.1f} s  {ref.place}", markup=False, soft_wrap=True)
        if (report := ref.artifacts.get("report")) is not None:
            self.console.print(f"{'':<9}   report {address(self.deployment, report.key)}", markup=False, soft_wrap=True)

    def failed(self, what: str, message: str) -> None:
        self.console.print(f"{what:<9} ✗ {message}", style="yellow", markup=False, soft_wrap=True)


def tell(trainings: Sequence[Training], deployment: Deployment, console: Console) -> None:
    """Print what came out."""
    if trainings:
        console.print(_table(trainings))
    for training in trainings:
        seed = f"seed {training.checkpoint.seed}: " if len(trainings) > 1 else ""
        if (report := training.report) is not None:
            colour = "green" if report.passed else "yellow"
            console.print(f"{seed}[{colour}]{verdict(report.passed)}[/{colour}]", end=": ", soft_wrap=True)
            console.print(report.reason, markup=False, soft_wrap=True)
        address_ = run_url(deployment, training.checkpoint.tracking_run)
        console.print(f"{seed}MLflow  {address_}", markup=False, soft_wrap=True)


def _table(trainings: Sequence[Training]) -> Table:
    """A row for each metric: the champion's, the candidate's, and over several seeds how it varies."""
    champions = {each.report.champion for each in trainings if each.report is not None}
    # Of earlier evaluations another one may have been in production.
    champion = champions.pop() if len(champions) == 1 else None
    several, table = len(trainings) > 1, Table("metric")
    columns = [f"version {champion}, the champion"] if champion is not None else []
    columns += [f"seed {each.checkpoint.seed}" for each in trainings] if several else ["this model"]
    for name in [*columns, *(["mean", "standard deviation"] if several else [])]:
        table.add_column(name, justify="right")
    for metric in trainings[0].metrics:
        values = [each.metrics[metric] for each in trainings]
        report = trainings[0].report
        cells = []
        if champion is not None and report is not None:
            cells.append(_number(report.metrics, CHAMPION + metric))
        cells += [f"{value:.4f}" for value in values]
        if several:
            spread = Spread.of(values)
            cells += [f"{spread.mean:.4f}", f"{spread.standard_deviation:.4f}"]
        table.add_row(metric, *cells)
    return table


def _number(metrics: Mapping[str, float], name: str) -> str:
    return f"{metrics[name]:.4f}" if name in metrics else "-"
