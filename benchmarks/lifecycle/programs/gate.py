"""
How often the gate promotes a model that differs from the champion in its seed only, and one that is really better.

``python -m benchmarks.lifecycle.programs.gate HOME``, in the training runtime.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from benchmarks.data.programs.features import tables
from benchmarks.lifecycle.programs.trainings import night_of, planted, train
from mlops.code import load_attribute
from mlops.contract.rules import Improvement
from mlops.contract.section import NoSettings
from mlops.evaluation.bootstrap import paired, resampled
from mlops.evaluation.rules import improvement
from mlops.evaluation.serving_benchmark import ServingBenchmark
from mlops.evaluation.verdict import Measured
from mlops.metrics.metric import load_metric
from mlops.metrics.predictions import Predictions

NIGHTS: Final = [date(2013, 3, 3) + timedelta(days=28 * number) for number in range(11)]
"""Sundays of the year: no two of them share a held-out day, hardly two a season."""
NUM_NOISE: Final = 8
"""Seeds by which a night's seed noise is found, and no others judged."""
NUM_SEEDS: Final = 16
"""Further seeds, each of which is candidate against each other one."""
NUM_PLANTED: Final = 8
"""Seeds of the better feature set, each a candidate against all champions of its night."""
NUM_DRAWS: Final = 400
"""Resamples of a hold-out: fewer than the gate takes, for the time they cost."""
STRENGTHS: Final = (0.2, 0.4, 0.6)
"""Of the planted feature; what lift of AUC that is, is measured."""
CONFIDENCE: Final = 0.95
AUC: Final = load_metric("auc", partial(load_attribute, home=Path()))


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """What a training scores on its night's hold-out."""

    auc: float
    num_flights: int
    draws: npt.NDArray[np.float64]
    """``[R]``, on the same resamples as every other model of the night."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Contest:
    """The trainings of one night."""

    noise: Sequence[Model]
    champions: Sequence[Model]
    planted: Mapping[float, Sequence[Model]]


def contest(home: Path) -> list[Contest]:
    _, rows = tables(home)["flight_delays"]
    contests = []
    for day in NIGHTS:
        night = night_of(rows, day)
        nights = {0.0: night} | {strength: planted(night, strength) for strength in STRENGTHS}
        # Other seeds than the champions': a seed in common would be something in common.
        first = NUM_NOISE + NUM_SEEDS
        seeds = {each: range(first, first + NUM_PLANTED) if each else range(first) for each in nights}
        labels, offsets = night.test.labels, np.arange(night.test.num_rows + 1)
        scores = {(each, seed): train(nights[each], seed) for each in nights for seed in seeds[each]}
        found = {
            key: Predictions(labels=labels, predicted=logits, offsets=offsets, settings=NoSettings())
            for key, logits in scores.items()
        }
        draws = resampled([AUC.weighted(each).values for each in found.values()], len(labels), NUM_DRAWS)
        models = {
            key: Model(auc=AUC.measure(each), num_flights=len(labels), draws=drawn)
            for (key, each), drawn in zip(found.items(), draws, strict=True)
        }
        of_seed = {each: [models[each, seed] for seed in seeds[each]] for each in nights}
        contests.append(
            Contest(
                noise=of_seed[0.0][:NUM_NOISE],
                champions=of_seed[0.0][NUM_NOISE:],
                planted={strength: of_seed[strength] for strength in STRENGTHS},
            )
        )
    return contests


def seed_noise(others: Sequence[Contest]) -> dict[str, float | int]:
    """The deviation within a night, pooled over nights; one training of each is spent on the night's mean."""
    variances = [np.var([model.auc for model in night.noise], ddof=1) for night in others]
    trainings = sum(len(night.noise) - 1 for night in others) + 1
    return {"deviation": float(np.sqrt(np.mean(variances))), "trainings": trainings}


def passes(candidate: Model, champion: Model, noise: Mapping[str, Any] | None, margin: float) -> bool:
    """By the gate itself."""
    rule = Improvement.model_validate({"improvement": margin, "confidence": CONFIDENCE, "seed_noise": noise})
    models = [candidate, champion]
    found = paired(AUC, candidate.num_flights, [model.auc for model in models], [model.draws for model in models])
    serving = ServingBenchmark(
        latency_p50_ms=0, latency_p99_ms=0, num_requests=0, rows_per_request=0, num_bytes=0, disturbances=[]
    )
    measured = Measured(
        metric="auc", champion_version="1", estimates={"auc": found}, slices=[], groups=[], serving=serving
    )
    return improvement(rule, measured).passed


def promoted(night: Contest, strength: float, noise: Mapping[str, Any] | None, margin: float = 0.0) -> float:
    """Share of the pairs in which the candidate passes, of a night; the champion always has the plain features."""
    candidates = night.planted[strength] if strength else night.champions
    pairs = [(new, old) for new, old in product(candidates, night.champions) if new is not old]
    return float(np.mean([passes(new, old, noise, margin) for new, old in pairs]))


def main(home: Path) -> list[dict[str, Any]]:
    nights = contest(home)
    others = [seed_noise([other for other in nights if other is not night]) for night in nights]
    own = [seed_noise([night]) for night in nights]

    def percent(strength: float, noises: Sequence[Mapping[str, Any] | None], margin: float = 0.0) -> list[float]:
        return [100 * promoted(night, strength, noise, margin) for night, noise in zip(nights, noises, strict=True)]

    by_rows: list[None] = [None for _ in nights]
    false = percent(0.0, others)
    print("false promotions by night, %, with the seed noise of the other nights:", np.round(false, 1))
    print("with that of other seeds of the same night:", np.round(percent(0.0, own), 1))
    print("by the rows alone:", np.round(percent(0.0, by_rows), 1))
    print("by the rows alone, with a margin of 0.5%:", np.round(percent(0.0, by_rows, margin=0.005), 1))
    print("seed noise by night:", [round(noise["deviation"], 4) for noise in own])
    print("pooled over all nights:", seed_noise(nights), flush=True)
    allowed = {"baseline": "allowed at 95% confidence", "baseline_value": 100 * (1 - CONFIDENCE), "target": 1.0}
    common = {"unit": "%", "better": "lower"}
    records: list[dict[str, Any]] = [
        {"name": "lifecycle.false_promotions", "ours": float(np.mean(false)), **common, **allowed},
        {"name": "lifecycle.false_promotions_noise_of_the_night", "ours": float(np.mean(percent(0.0, own))), **common,
         **allowed},
        {"name": "lifecycle.false_promotions_vs_rows", "ours": float(np.mean(false)), **common, "target": 0.5,
         "baseline": "bounds by the rows alone", "baseline_value": float(np.mean(percent(0.0, by_rows)))},
    ]  # fmt: skip
    for strength in STRENGTHS:
        lifts = [
            np.mean([model.auc for model in night.planted[strength]])
            / np.mean([model.auc for model in night.champions])
            - 1
            for night in nights
        ]
        records.append(
            {
                "name": f"lifecycle.power_at_{100 * np.mean(lifts):.1f}_percent_lift",
                "unit": "%",
                "ours": float(np.mean(percent(strength, others))),
                "baseline": "bounds by the rows alone",
                "baseline_value": float(np.mean(percent(strength, by_rows))),
                "better": "higher",
                "target": 0.5,
            }
        )
    return records


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
