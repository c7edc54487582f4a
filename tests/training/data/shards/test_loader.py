from __future__ import annotations

import gc
import threading
import traceback
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn

from mlops.contract.step import BadConfigError
from mlops.data.shards.feature_table import FeatureTable, offsets_of
from mlops.data.shards.loader import Batch, Loader, SampleSource, Step, in_memory, in_order
from mlops.data.shards.sampler import EpochSampler
from mlops.data.shards.table_source import InMemory, ShardRows, TableSource
from mlops.objectives.ranking import ranking_loss

NUM_SAMPLES = 103
GLOBAL_BATCH = 24


def table(
    grouped: bool, num_samples: int = NUM_SAMPLES, longest: int = 6, several: tuple[int, ...] = ()
) -> FeatureTable:
    """:param several: number of labels of a row; none: it has one"""
    rng = np.random.default_rng(3)
    lengths = rng.integers(1, longest + 1, num_samples) if grouped else np.ones(num_samples, np.int64)
    offsets = offsets_of(lengths)
    return FeatureTable(
        features=rng.normal(size=(offsets[-1], 4)).astype(np.float32),
        labels=rng.integers(0, 5, (offsets[-1], *several)).astype(np.float32),
        offsets=offsets,
    )


class InShards:
    """A table cut into shards of unequal size."""

    def __init__(self, whole: FeatureTable, edges: Sequence[int]) -> None:
        self.tables = [whole.samples(start, stop) for start, stop in pairwise(edges)]

    def __getitem__(self, number: int) -> ShardRows:
        part = self.tables[number]
        return ShardRows(features=part.features, labels=part.labels, offsets=part.offsets)

    def prefetch(self, numbers: Sequence[int]) -> None:
        pass


def source(grouped: bool = False, several: tuple[int, ...] = ()) -> SampleSource:
    """Shards of several windows, blocks of several steps."""
    edges = [0, 30, 30, 37, 80, NUM_SAMPLES]
    return TableSource(
        InShards(table(grouped, several=several), edges),
        np.diff(edges),
        grouped=grouped,
        window_samples=50,
        block_samples=60,
    )


def loader(rank: int = 0, world_size: int = 1, *, grouped: bool = False, **changes: Any) -> Loader:
    arguments = {"source": source(grouped), "global_batch": GLOBAL_BATCH, "seed": 1, "prefetch": 0} | changes
    return Loader(rank=rank, world_size=world_size, **arguments)


def weighed(step: Step) -> list[int]:
    """Samples of a rank's step that count."""
    return [
        sample
        for batch in step.batches
        for sample, weight in zip(batch.samples.tolist(), batch.weights.tolist(), strict=True)
        if weight
    ]


def global_batches(world_size: int, epoch: int = 1, start: int = 0, **changes: Any) -> list[list[int]]:
    """The samples of every global batch, put together from all ranks."""
    ranks = [loader(rank, world_size, **changes).epoch(epoch, start) for rank in range(world_size)]
    found = []
    for steps in zip(*ranks, strict=True):
        assert len({len(step.batches) for step in steps}) == 1, "as many batches on every rank"
        samples = sorted(sample for step in steps for sample in weighed(step))
        assert {step.num_samples for step in steps} == {len(samples)}
        assert {step.index for step in steps} == {start + len(found)}
        found.append(samples)
    return found


SHARES = [
    pytest.param({}, id="whole shares"),
    pytest.param({"micro_batch": 3}, id="micro batches"),
    pytest.param({"logical_shards": 6}, id="logical shards"),
    pytest.param({"grouped": True}, id="groups"),
    pytest.param({"grouped": True, "micro_batch": 2}, id="groups in micro batches"),
    pytest.param({"grouped": True, "logical_shards": 5}, id="groups in logical shards"),
]


@pytest.mark.parametrize("share", SHARES)
def test_every_world_size_sees_the_same_global_batches(share: dict[str, Any]) -> None:
    """Broken: the number of machines would change what is learnt."""
    alone = global_batches(1)
    assert sorted(sample for batch in alone for sample in batch) == list(range(NUM_SAMPLES))
    for world_size in (2, 3, 5, 7, 30):
        assert global_batches(world_size, **share) == alone


@pytest.mark.parametrize("share", SHARES)
def test_a_gang_resized_in_mid_epoch_goes_on_where_it_was(share: dict[str, Any]) -> None:
    """Broken: after the loss of a machine samples would be seen twice or never."""
    alone = global_batches(1)
    sizes = [
        global_batches(8, **share)[:2],
        global_batches(5, start=2, **share)[:2],
        global_batches(7, start=4, **share),
    ]
    assert [batch for part in sizes for batch in part] == alone


@pytest.mark.parametrize("num_samples", [*range(2, 12), 32, 33, 34, 39, 63, 64, 65, 97])
@pytest.mark.parametrize(
    "share", [{}, {"micro_batch": 3}, {"micro_batch": 7}, {"logical_shards": 8}, {"logical_shards": 3}]
)
def test_no_pass_is_over_a_single_row(num_samples: int, share: dict[str, Any]) -> None:
    """Broken: on one night in 32 a model with a batch norm ends in the last step of its first epoch."""
    rows = in_memory(table(False).samples(0, num_samples), grouped=False)
    for world_size in (1, 2, 3, 8, 16):
        found = []
        for rank in range(world_size):
            steps = [*loader(rank, world_size, source=rows, global_batch=32, **share).epoch(1)]
            batches = [batch for step in steps for batch in step.batches]
            assert all(len(batch.features) > 1 for batch in batches), world_size
            assert all(len(batch.features) <= share.get("micro_batch", 33) for batch in batches)
            found += [sample for step in steps for sample in weighed(step)]
        assert sorted(found) == list(range(num_samples))


def test_of_few_samples_for_many_ranks_each_has_one() -> None:
    """Broken: half of the processes would do nothing in a training whose steps have as many samples."""
    steps = [next(iter(loader(rank, 4, global_batch=4).epoch(1))) for rank in range(4)]
    assert [len(weighed(step)) for step in steps] == [1, 1, 1, 1]


def test_the_order_is_a_function_of_seed_and_epoch() -> None:
    assert global_batches(1, epoch=1) != global_batches(1, epoch=2)
    assert global_batches(1, seed=1) != global_batches(1, seed=2)


def first_feature(batch: Batch) -> npt.NDArray[np.float64]:
    """Of the first row of a sample; many are alike."""
    found = batch.features if batch.mask is None else batch.features[:, 0]
    return found[:, 0].round().double().numpy()


@pytest.mark.parametrize("share", SHARES)
def test_easy_samples_come_first_in_the_epochs_that_are_ordered(share: dict[str, Any]) -> None:
    """Broken: what is learnt would depend on the number of machines, or a sample would be seen twice or never."""
    ordered = {"difficulty": first_feature, "ordered_epochs": 2, **share}
    data = source(share.get("grouped", False))
    sampler = EpochSampler(data.shard_sizes, seed=1, epoch=2, window_samples=data.window_samples)
    assert len(sampler.window_starts) > 2, "several windows"
    expected: list[int] = []
    for start, stop in pairwise(sampler.window_starts.tolist()):
        samples = sampler(np.arange(start, stop))
        expected += samples[np.argsort(first_feature(data.gather(samples)), kind="stable")].tolist()
    steps = [sorted(expected[start : start + GLOBAL_BATCH]) for start in range(0, NUM_SAMPLES, GLOBAL_BATCH)]
    for world_size in (1, 3, 7):
        assert global_batches(world_size, epoch=2, **ordered) == steps
        assert global_batches(world_size, epoch=2, start=2, **ordered) == steps[2:]
    assert global_batches(2, epoch=3, **ordered) == global_batches(1, epoch=3)


def test_each_sample_is_measured_once_an_epoch() -> None:
    """Also where the epoch before looks ahead at what it will need."""
    measured: list[int] = []

    def difficulty(batch: Batch) -> npt.NDArray[np.float64]:
        measured.extend(batch.samples.tolist())
        return first_feature(batch)

    ranks = loader(difficulty=difficulty, ordered_epochs=2)
    for epoch in (1, 2, 3):
        assert len(list(ranks.epoch(epoch))) == ranks.num_steps
    assert sorted(measured) == sorted([*range(NUM_SAMPLES)] * 2)


@pytest.mark.parametrize("several", [(), (3,)], ids=["a label", "labels"])
@pytest.mark.parametrize("grouped", [False, True], ids=["rows", "groups"])
def test_batches_hold_the_rows_of_their_samples(grouped: bool, several: tuple[int, ...]) -> None:
    """Through shards, blocks, micro batches and the stand-ins."""
    data = table(grouped, several=several)
    for step in loader(2, 5, source=source(grouped, several), micro_batch=2).epoch(1):
        for batch in step.batches:
            expected = in_memory(data, grouped=grouped).gather(batch.samples, batch.weights[0].item())
            for name in ("features", "labels", "mask", "weights"):
                one, other = getattr(batch, name), getattr(expected, name)
                assert one is other is None or torch.equal(one, other), name


def test_a_thousand_ranks_share_a_batch() -> None:
    """Ranks' parts are disjoint and whole at a world size that no test machine has."""
    data = FeatureTable(
        features=np.zeros((30_000, 1), np.float32), labels=np.zeros(30_000, np.float32), offsets=np.arange(30_001)
    )
    held = in_memory(data, grouped=False)
    ranks = [
        Loader(source=held, global_batch=5000, seed=1, rank=rank, world_size=1024, prefetch=0) for rank in range(1024)
    ]
    steps = [next(rank.epoch(1, start=3)) for rank in ranks]
    whole = weighed(next(Loader(source=held, global_batch=5000, seed=1, rank=0, world_size=1).epoch(1, 3)))
    assert sorted(sample for step in steps for sample in weighed(step)) == sorted(whole)
    assert {len(weighed(step)) for step in steps} == {4, 5}


@pytest.mark.parametrize("grouped", [False, True], ids=["rows", "groups"])
def test_a_logical_shard_is_the_same_batch_at_every_world_size(grouped: bool) -> None:
    """Exact mode rests on it."""

    def batches(world_size: int) -> dict[tuple[int, int], Batch]:
        return {
            (step.index, shard): batch
            for rank in range(world_size)
            for step in loader(rank, world_size, grouped=grouped, logical_shards=7).epoch(1)
            for batch, shard in zip(step.batches, step.shards, strict=True)
            if shard >= 0
        }

    alone = batches(1)
    assert len(alone) == 5 * 7
    for world_size in (2, 3, 9):
        others = batches(world_size)
        assert others.keys() == alone.keys()
        for place, batch in others.items():
            np.testing.assert_array_equal(batch.samples, alone[place].samples)
            assert torch.equal(batch.features, alone[place].features)


def test_a_rank_without_samples_gets_a_stand_in_of_no_weight() -> None:
    """Broken: the rank would miss a collective and the gang would hang, or a sample would count twice."""
    last = [list(loader(rank, 9).epoch(1))[-1] for rank in range(9)]
    assert [step.num_samples for step in last] == [7] * 9
    weights = [step.batches[0].weights.sum().item() for step in last]
    assert sorted(weights) == [0, 0, 0, 0, 0, 0, 2, 2, 3]
    assert sorted(len(step.batches[0].features) for step in last) == [2] * 8 + [3]


def test_ranks_carry_equal_rows_and_batches_little_padding() -> None:
    """Broken: every step would wait for the rank with the long queries, and compute on zeros."""
    held = in_memory(table(grouped=True, num_samples=2000, longest=60), grouped=True)
    steps = [
        next(Loader(source=held, global_batch=256, seed=1, rank=rank, world_size=4, micro_batch=8, prefetch=0).epoch(1))
        for rank in range(4)
    ]
    rows = [sum(int(batch.mask.sum()) for batch in step.batches if batch.mask is not None) for step in steps]
    padded = sum(batch.labels.numel() for step in steps for batch in step.batches)
    assert max(rows) < 1.03 * min(rows)
    assert padded < 1.15 * sum(rows)


def test_how_a_batch_is_dealt_does_not_change_its_loss() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 1), nn.Flatten(-2))

    def total(world_size: int, **changes: Any) -> float:
        steps = [next(loader(rank, world_size, grouped=True, **changes).epoch(1)) for rank in range(world_size)]
        losses = [ranking_loss(model, batch) * batch.weights for step in steps for batch in step.batches]
        return torch.cat(losses).double().sum().item()

    alone = total(1)
    assert total(1, micro_batch=5) == pytest.approx(alone, rel=1e-5)
    assert total(3, micro_batch=2) == pytest.approx(alone, rel=1e-5)
    assert total(4, logical_shards=6) == pytest.approx(alone, rel=1e-5)


@pytest.mark.parametrize("prefetch", [1, 2, 9])
def test_prefetching_changes_nothing(prefetch: int) -> None:
    plain, ahead = (list(loader(1, 3, micro_batch=3, prefetch=depth).epoch(1, 1)) for depth in (0, prefetch))
    assert len(plain) == len(ahead) == 4
    for one, other in zip(plain, ahead, strict=True):
        assert weighed(one) == weighed(other)
        assert all(torch.equal(a.features, b.features) for a, b in zip(one.batches, other.batches, strict=True))


def loader_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "loader"]


def test_closing_an_epoch_ends_its_thread() -> None:
    """Broken: every early stop would leave a thread that holds on to a split."""
    steps = loader(prefetch=1).epoch(1)
    next(steps)
    assert loader_threads()
    steps.close()  # type: ignore[attr-defined]
    assert not loader_threads()

    def interrupted() -> None:
        for step in loader(prefetch=1).epoch(1):
            raise InterruptedError(step.index)

    with pytest.raises(InterruptedError):
        interrupted()
    gc.collect()
    assert not loader_threads()
    assert len(list(loader(prefetch=1).epoch(1))) == 5
    assert not loader_threads()


def test_what_goes_wrong_in_the_thread_is_raised_where_the_data_is_used(tmp_path: Path) -> None:
    """Broken: a rank would wait for ever for a batch that nobody makes, or stop without a reason."""
    path = tmp_path / "offsets"
    whole = table(grouped=True)
    path.write_bytes(whole.offsets[:50].tobytes())  # cut off
    cut = InMemory(ShardRows(features=whole.features, labels=whole.labels, offsets=np.fromfile(path, np.int64)))
    broken = TableSource(cut, np.array([NUM_SAMPLES]), grouped=True, window_samples=100)

    with pytest.raises(IndexError) as caught:
        list(loader(source=broken, prefetch=2).epoch(1))

    assert "_span" in "".join(traceback.format_tb(caught.value.__traceback__))
    assert not loader_threads()


def test_a_loader_stays_within_its_depth() -> None:
    """Broken: a slow step would let the whole epoch be gathered into memory."""
    gathered = threading.Semaphore(0)

    class Counting(TableSource):
        def gather_many(self, parts: Sequence[Any], weights: Sequence[float]) -> Sequence[Batch]:
            gathered.release()
            return super().gather_many(parts, weights)

    whole = table(grouped=False)
    held = InMemory(ShardRows(features=whole.features, labels=whole.labels, offsets=None))
    counting = Counting(held, np.array([NUM_SAMPLES]), grouped=False, window_samples=100)
    steps = loader(source=counting, global_batch=2, prefetch=3).epoch(1)
    next(steps)
    for _ in range(5):  # one is used, three wait, and one is in the thread's hand
        assert gathered.acquire(timeout=30)
    assert not gathered.acquire(timeout=0.3)
    steps.close()  # type: ignore[attr-defined]


def test_what_comes_next_is_fetched_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: at each begin of a window or an epoch a training on an object store would wait for its shards."""
    monkeypatch.setattr("mlops.data.shards.loader._STRETCH", 1)
    hinted: list[set[int]] = []

    class Hinted(TableSource):
        def prefetch(self, samples: Any) -> None:
            hinted.append(set(samples.tolist()))

    whole = table(grouped=False)
    held = InMemory(ShardRows(features=whole.features, labels=whole.labels, offsets=None))
    hinting = Hinted(held, np.array([50, 50]), grouped=False, window_samples=50)
    ours = loader(1, 2, global_batch=25, source=hinting)
    steps = [set(weighed(step)) for step in ours.epoch(1)]
    assert hinted == [steps[2], set(weighed(next(ours.epoch(2))))]
    hinted.clear()
    list(ours.epoch(1, last=True))
    assert hinted == [steps[2]], "what no epoch needs was fetched"


def test_settings_that_exclude_each_other_are_refused() -> None:
    with pytest.raises(BadConfigError, match="micro_batch 4 cannot be had in exact mode"):
        loader(micro_batch=4, logical_shards=8)
    with pytest.raises(BadConfigError, match="global_batch must be at least 1, got 0"):
        loader(global_batch=0)


@pytest.mark.parametrize("several", [(), (3,)], ids=["a label", "labels"])
def test_groups_are_padded_with_zeros_under_the_mask(several: tuple[int, ...]) -> None:
    data = table(grouped=True, several=several)
    batch = in_memory(data, grouped=True).gather(np.array([4, 9, 2]))
    assert batch.mask is not None
    for position, sample in enumerate([4, 9, 2]):
        first, last = data.offsets[sample], data.offsets[sample + 1]
        length = last - first
        assert batch.mask[position].tolist() == [True] * length + [False] * (batch.mask.shape[1] - length)
        np.testing.assert_array_equal(batch.features[position, :length].numpy(), data.features[first:last])
        np.testing.assert_array_equal(batch.labels[position, :length].numpy(), data.labels[first:last])
        assert batch.features[position, length:].abs().sum() == 0
        assert batch.labels[position, length:].abs().sum() == 0


@pytest.mark.parametrize("grouped", [False, True], ids=["rows", "groups"])
def test_reading_in_order_gives_back_the_table(grouped: bool) -> None:
    data = table(grouped)
    parts = [
        batch.features if batch.mask is None else batch.features[batch.mask]
        for batch in in_order(data, 4, grouped=grouped)
    ]
    np.testing.assert_array_equal(torch.cat(parts).numpy(), data.features)


def starts(batch: Batch) -> list[int]:
    """Where each tensor begins within a cache line."""
    tensors = (batch.features, batch.labels, batch.mask, batch.weights)
    return [tensor.data_ptr() % 64 for tensor in tensors if tensor is not None]


@pytest.mark.parametrize("share", SHARES)
def test_every_tensor_of_a_batch_is_aligned(share: dict[str, Any]) -> None:
    """Broken: bits would depend on the number of ranks, and on where a checkpoint was: MKL takes another path."""
    for rank, world_size, start in ((0, 1, 0), (0, 1, 3), (1, 2, 1), (2, 5, 0), (29, 30, 2)):
        for step in loader(rank, world_size, prefetch=2, **share).epoch(1, start):
            assert not any(offset for batch in step.batches for offset in starts(batch))


@pytest.mark.parametrize("several", [(), (3,)], ids=["a label", "labels"])
@pytest.mark.parametrize("num_shards", [1, 3, 60], ids=["one shard", "long runs", "short runs"])
@pytest.mark.parametrize("width", [1, 31, 93, 48])
def test_alignment_does_not_depend_on_sizes(num_shards: int, width: int, several: tuple[int, ...]) -> None:
    rng = np.random.default_rng(5)
    features = rng.normal(size=(600, width)).astype(np.float32)
    labels = rng.normal(size=(600, *several)).astype(np.float32)
    whole = FeatureTable(features=features, labels=labels, offsets=np.arange(601))
    edges = np.linspace(0, 600, num_shards + 1).astype(int).tolist()
    held = TableSource(InShards(whole, edges), np.diff(edges), grouped=False, window_samples=600)
    for sizes in ([1, 1, 2, 3], [300], [7, 250, 1, 90], [17] * 30):
        samples = np.sort(rng.permutation(600)[: sum(sizes)])
        parts = np.split(samples, np.cumsum(sizes)[:-1])
        for part, batch in zip(parts, held.gather_many(parts, [1.0] * len(parts)), strict=True):
            assert not any(starts(batch))
            np.testing.assert_array_equal(batch.features.numpy(), features[part])
            np.testing.assert_array_equal(batch.labels.numpy(), labels[part])


@pytest.mark.parametrize("grouped", [False, True], ids=["rows", "groups"])
def test_what_is_scored_is_aligned(grouped: bool) -> None:
    """Broken: the scores of a row would depend on the program that reads the split."""
    assert not any(any(starts(batch)) for batch in in_order(table(grouped), 7, grouped=grouped))


def test_batches_share_memory_with_nothing() -> None:
    """Broken: a model that works in place would change a memory-mapped shard, or a later batch."""
    data = table(grouped=False)
    before = data.features.copy()
    held = in_memory(data, grouped=False)
    changed = []
    for step in loader(source=held, prefetch=2).epoch(1):
        changed.append(step.batches[0].features.clone())
        step.batches[0].features.add_(1)
    np.testing.assert_array_equal(data.features, before)
    kept = [step.batches[0].features for step in loader(source=held, prefetch=2).epoch(1)]
    assert all(torch.equal(one, other) for one, other in zip(changed, kept, strict=True))


def test_a_batch_is_moved_whole() -> None:
    batch = in_memory(table(grouped=True), grouped=True).gather(np.arange(3)).to(torch.device("meta"))
    assert batch.mask is not None
    assert {tensor.device.type for tensor in (batch.features, batch.labels, batch.mask, batch.weights)} == {"meta"}
