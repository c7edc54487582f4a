"""What a step minimises."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from mlops.contract.sections.sequence_length import SequenceLength
from mlops.data.shards.batch import Batch
from mlops.objectives.language_model import language_model_loss
from mlops.trainer.training_loss import TrainingLoss

LENGTHS = [SequenceLength(tokens=2, until=0.25), SequenceLength(tokens=4, until=0.5)]


class Seen(nn.Module):
    """Logits of a token by that token alone."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.shapes = nn.Embedding(5, 5), list[tuple[int, ...]]()

    def forward(self, tokens: Tensor) -> Tensor:
        self.shapes.append(tuple(tokens.shape))
        found: Tensor = self.table(tokens)
        return found


def batch() -> Batch:
    tokens = torch.from_numpy(np.random.default_rng(0).integers(0, 5, (3, 9)))
    return Batch(
        features=tokens[:, :-1],
        labels=tokens[:, 1:],
        mask=None,
        weights=torch.tensor([1.0, 1.0, 0.0]),
        samples=np.array([7, 2, 2]),
    )


@pytest.mark.parametrize(
    ("progress", "shape"), [(0.0, (12, 2)), (0.2499, (12, 2)), (0.25, (6, 4)), (0.5, (3, 8)), (1.0, (3, 8))]
)
def test_sequences_grow_and_a_sample_s_loss_is_that_of_all_its_tokens(progress: float, shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    model, whole = Seen(), batch()
    losses = TrainingLoss(loss=language_model_loss, lengths=LENGTHS)(model, whole, progress)
    assert model.shapes == [shape]
    torch.testing.assert_close(losses, language_model_loss(model, whole))


def test_short_sequences_follow_each_other_in_their_sample() -> None:
    whole = batch()
    read = TrainingLoss(loss=language_model_loss, lengths=LENGTHS).read(whole, 0.3)
    assert torch.equal(read.features[1], whole.features[0, 4:])
    assert torch.equal(read.labels[4], whole.labels[2, :4])
    assert read.weights.tolist() == [1, 1, 1, 1, 0, 0]
    assert read.samples.tolist() == [7, 7, 2, 2, 2, 2]


def test_the_curriculum_weighs_whole_samples() -> None:
    model, whole, asked = Seen(), batch(), list[tuple[Batch, float]]()

    def halved(given: Batch, progress: float) -> Tensor:
        asked.append((given, progress))
        return torch.full((len(given.weights),), 0.5)

    plain = TrainingLoss(loss=language_model_loss, lengths=LENGTHS)(model, whole, 0.1)
    weighed = TrainingLoss(loss=language_model_loss, curriculum=halved, lengths=LENGTHS)(model, whole, 0.1)
    torch.testing.assert_close(weighed, plain / 2)
    assert asked[0][0] is whole
    assert asked[0][1] == 0.1
