from __future__ import annotations

import json
import math

import pytest

from mlops.trainer.fingerprint import MAX_LINKS, StepFingerprint


def walked(
    num_steps: int, odd_step: int | None = None, trail: StepFingerprint | None = None, first: int = 1
) -> StepFingerprint:
    """A trail of gradient norms, one of which differs in its last bit where that is asked for."""
    trail = trail or StepFingerprint()
    for step in range(first, num_steps + 1):
        norm = math.sqrt(step)
        trail.add(step, math.nextafter(norm, 0) if step == odd_step else norm)
    return trail


@pytest.mark.parametrize("odd_step", [1, 2, 300, MAX_LINKS])
def test_the_first_step_that_differs_is_found_to_the_bit(odd_step: int) -> None:
    """Broken: a difference of one bit in one step would be seen in the weights only, with no word of where it began."""
    assert walked(MAX_LINKS).parts_from(walked(MAX_LINKS)) is None
    assert walked(MAX_LINKS).parts_from(walked(MAX_LINKS, odd_step)) == (odd_step - 1, odd_step)


def test_of_a_long_training_a_few_steps_are_kept() -> None:
    """Broken: each checkpoint of a training of a million steps would carry megabytes of digests."""
    trail = walked(100_000)
    assert len(trail.links) <= MAX_LINKS
    parted = trail.parts_from(walked(100_000, 70_001))
    assert parted is not None
    assert parted[0] < 70_001 <= parted[1] == parted[0] + trail.stride


def test_a_training_that_was_interrupted_leaves_the_same_trail() -> None:
    """Broken: whatever was preempted would look different from its reproduction."""
    document = json.loads(json.dumps(walked(700).document()))
    resumed = walked(3000, trail=StepFingerprint.of(document), first=701)
    assert resumed.document() == walked(3000).document()
