"""The matrix: a model, an optimizer, a layout and a batch shape each, and what must become of it when it is killed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import matrix_models as m
from torch import nn, optim

DDP: dict[str, int] = {}
FSDP, TP, PP = {"dp_shard": 2}, {"tp": 2}, {"pp": 2}
HSDP = {"dp_replicate": 2, "dp_shard": 2}
EQUAL = "equal"


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    name: str
    model: Callable[[], nn.Module]
    optimizer: Any = None
    """``configure_optimizer`` of the recipe; None: AdamW."""
    loss: Any = None
    worlds: Sequence[int] = (1,)
    """Processes of the undisturbed run, and of each life of the killed one, in turns."""
    parallel: Mapping[str, int] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of the ``train`` section."""
    global_batch: int = 9
    grouped: bool = False
    expected: str = EQUAL
    """``equal``, or a part of the message with which the training is refused at its start."""
    self_test: bool = False
    """Whether the training tests itself at the start."""
    slow: bool = False
    """Compiled: takes ten times as long as the others, and runs in ``make chaos`` only."""


CASES: list[Case] = []


def case(name: str, model: Callable[[], nn.Module], optimizer: Any = None, **changes: Any) -> None:
    CASES.append(Case(name=name, model=model, optimizer=optimizer, **changes))


def exact(*worlds: int, **changes: Any) -> dict[str, Any]:
    return {"worlds": worlds, "settings": {"elastic": "exact", "logical_shards": 4, **changes}}


def two(parallel: Mapping[str, int] = DDP, **settings: Any) -> dict[str, Any]:
    return {"worlds": (2,), "parallel": parallel, "settings": settings}


def three(**settings: Any) -> dict[str, Any]:
    return {"worlds": (3,), "settings": settings}


# One process: every optimizer.
case("adamw", m.mlp)
case("sgd momentum", m.mlp, m.of(optim.SGD, momentum=0.9, nesterov=True), global_batch=7)
case("sgd plain", m.mlp, m.of(optim.SGD))
case("rmsprop centered", m.mlp, m.of(optim.RMSprop, centered=True, momentum=0.5), global_batch=3)
case("adagrad", m.mlp, m.of(optim.Adagrad, initial_accumulator_value=0.1))
case("adadelta", m.mlp, m.of(optim.Adadelta))
case("nadam", m.mlp, m.of(optim.NAdam, momentum_decay=0.01))
case("radam", m.mlp, m.of(optim.RAdam, decoupled_weight_decay=True))
case("rprop", m.mlp, m.of(optim.Rprop))
case("asgd", m.mlp, m.of(optim.ASGD, t0=3))
case("adamax amsgrad", m.mlp, m.of(optim.Adam, amsgrad=True), global_batch=2)
case("adafactor", m.mlp, m.of(optim.Adafactor))
case("muon", m.mlp, m.muon)
case("lbfgs", m.mlp, m.of(optim.LBFGS), expected="closure")
case("lookahead made late", m.mlp, lambda model, rate, _: m.Lookahead(model.parameters(), rate))
case("averaged with lists", m.mlp, lambda model, rate, _: m.Averaged(model.parameters(), rate, momentum=0.9))
case(
    "two groups", m.mlp, m.decayed, settings={"schedule": {"kind": "cosine", "warmup_steps": 2, "final_fraction": 0.1}}
)
case("a head alone", m.mlp, m.head_only)
case("a parameter in two groups", m.mlp, m.twice, expected="more than one")
case("a parameter of no model", m.mlp, m.foreign, expected="not a parameter of the model")
# One process: every model.
case("lstm", lambda: m.Recurrent(nn.LSTM, num_layers=2, dropout=0.1))
case("gru both ways", lambda: m.Recurrent(nn.GRU, bidirectional=True), global_batch=2)
case("attention", m.Attention, global_batch=3)
case("convolution", m.Convolution, global_batch=1)
case("tied", m.Tied)
case("frozen", m.frozen)
case("batch norm", m.batch_normed)
case("spectral norm", m.Spectral)
case("weight norm", m.WeightNormed)
case("embedding bag", lambda: m.Embedded(bag=True))
case("sparse embedding", lambda: m.Embedded(sparse=True), m.of(optim.SGD))
case("sparse adam alone", lambda: m.Embedded(sparse=True), m.sparse_adam)
case("experts alone", m.Experts, m.of(optim.Adam), settings={"unused_parameters": True})
case("scalars", m.Scaled)
case("complex", m.Waves)
case("float64", m.Double)
case("a spare weight", m.Spare, expected="does not depend on the parameter spare")
case("numpy's numbers", m.Numpy)
case("a loss with noise", m.mlp, loss=m.noisy_loss)
case("a learnt range", m.Quantised)
case("cached table", m.Cached)
case("taught", m.Taught)
case("a growing bank", m.Bank, expected="the buffer bank was of the shape")
case("fp16", m.mlp, settings={"precision": "fp16"})
case("bf16 recomputed", m.blocks, settings={"precision": "bf16", "activation_checkpointing": True})
case("groups accumulated", lambda: m.grouped(m.mlp()), grouped=True, settings={"micro_batch": 2})
# What no checkpoint holds.
case("own generator", m.Noisy, expected="source", self_test=True)
case("python counter", m.Counting, expected="calls", self_test=True)
case("global counter", m.Global, expected="_CALLS", self_test=True)
case("forgetful optimizer", m.mlp, lambda model, rate, _: m.Forgetful(model.parameters(), rate), expected="count",
     self_test=True)  # fmt: skip
case("buffer left out", lambda: m.Averaging(persistent=False), expected="mean", self_test=True)
case("self-test passed", m.batch_normed, self_test=True, **two(), global_batch=10)
# Replicas.
case("ddp 2", m.mlp, **two(), global_batch=3)
case("ddp 3 of one row", m.mlp, m.of(optim.SGD, momentum=0.9), **three(), global_batch=3)
case("ddp 3 uneven", lambda: m.Recurrent(nn.LSTM), m.of(optim.RMSprop), **three(), global_batch=7)
case("ddp 3 accumulated", m.batch_normed, **three(micro_batch=2), global_batch=12)
case("ddp fp16 clipped", m.mlp, **two(precision="fp16", clip_norm=0.01))
case("ddp bf16 lstm", lambda: m.Recurrent(nn.LSTM), **two(precision="bf16"))
case("ddp sparse", lambda: m.Embedded(sparse=True), m.of(optim.SGD), **two())
case("ddp sparse adam", lambda: m.Embedded(sparse=True), m.sparse_adam, **two())
case("ddp experts", m.Experts, **two(unused_parameters=True))
case("ddp experts unsaid", lambda: m.Experts(16, threshold=0.2), **two(), expected="unused_parameters")
case("ddp 3 experts accumulated", m.Experts, **three(unused_parameters=True, micro_batch=2))
case("ddp frozen", m.frozen, m.of(optim.Adagrad), **two())
case("ddp head alone", m.mlp, m.head_only, **two())
case("ddp tied", m.Tied, m.of(optim.NAdam), **two(), global_batch=2)
case("ddp spectral", m.Spectral, **two())
case("ddp scalars", m.Scaled, m.of(optim.Adam), **three())
case("ddp averaging", m.Averaging, **two())
case("ddp taught", m.Taught, **two())
case("ddp cached table", m.Cached, **two())
case("ddp groups", lambda: m.grouped(m.batch_normed()), grouped=True, **two(micro_batch=3), global_batch=10)
case("ddp 3 groups by rows", lambda: m.grouped(m.batch_normed()), grouped=True, **three(micro_batch_rows=20),
     global_batch=10)  # fmt: skip
case("ddp recomputed", m.blocks, **two(activation_checkpointing=True))
case("ddp lookahead", m.mlp, lambda model, rate, _: m.Lookahead(model.parameters(), rate), **two())
# Shards, slices, stages.
case("fsdp 2", m.mlp, **two(FSDP))
case("fsdp 3 odd", m.blocks, worlds=(3,), parallel={"dp_shard": 3}, global_batch=4)
case("hsdp", m.blocks, worlds=(4,), parallel=HSDP)
case("fsdp adafactor", m.mlp, m.of(optim.Adafactor), **two(FSDP))
case("fsdp muon", m.mlp, m.muon, **two(FSDP))
case("fsdp sgd momentum bf16", m.blocks, m.of(optim.SGD, momentum=0.9), **two(FSDP, precision="bf16"))
case("fsdp scalars", m.Scaled, **two(FSDP), global_batch=3)
case("hsdp scalars accumulated", m.Scaled, worlds=(4,), parallel=HSDP, settings={"micro_batch": 1})
case("fsdp frozen", m.frozen, **two(FSDP))
case("fsdp head alone", m.mlp, m.head_only, **two(FSDP))
case("fsdp tied", m.Tied, **two(FSDP))
case("fsdp batch norm", m.batch_normed, **two(FSDP), global_batch=10)
case("fsdp sparse", lambda: m.Embedded(sparse=True), m.of(optim.SGD), **two(FSDP), expected="sparse")
case("fsdp experts", m.Experts, **two(FSDP, unused_parameters=True), expected="unused_parameters")
case("fsdp experts by data", m.Experts, **two(FSDP), expected="unused_parameters")
case("fsdp layer drop", m.DropsLayers, **two(FSDP, micro_batch=2), expected="same parts")
case("hsdp layer drop", m.DropsLayers, worlds=(4,), parallel=HSDP, settings={"micro_batch": 1}, expected="same parts")
case("fsdp lookahead", m.mlp, lambda model, rate, _: m.Lookahead(model.parameters(), rate), **two(FSDP))
case("fsdp accumulated recomputed", m.blocks, **two(FSDP, micro_batch=2, activation_checkpointing=True))
case("fsdp groups by rows", lambda: m.grouped(m.mlp()), grouped=True, **two(FSDP, micro_batch_rows=8))
case("fsdp lstm", lambda: m.Recurrent(nn.LSTM), **two(FSDP))
case("tp", m.blocks, **two(TP))
case("tp nadam", m.blocks, m.of(optim.NAdam), **two(TP))
case("tp groups adafactor", m.blocks, m.of(optim.Adafactor), **two(TP))
case("pp", m.blocks, **two(PP, micro_batch=3))
case("pp batch norm", m.batch_normed, m.of(optim.RMSprop), **two(PP, micro_batch=3))
case("pp lookahead", m.blocks, lambda model, rate, _: m.Lookahead(model.parameters(), rate), **two(PP, micro_batch=3))
case("pp head alone", m.blocks, m.head_only, **two(PP, micro_batch=3))
# Exact at any number of processes.
case("exact mlp", m.mlp, **exact(1, 3, 2, 4), global_batch=7)
case("exact lstm of one row", lambda: m.Recurrent(nn.LSTM), **exact(1, 2, 3), global_batch=4)
case("exact groups", lambda: m.grouped(m.mlp()), grouped=True, **exact(2, 1, 4))
case("exact tied adagrad", m.Tied, m.of(optim.Adagrad), **exact(1, 3, 1))
case("exact attention", m.Attention, **exact(2, 3, 1))
case("exact bf16", m.blocks, **exact(2, 3, 1, precision="bf16"))
case("exact experts", m.Experts, **exact(1, 3, 2, unused_parameters=True))
case("exact scalars", m.Scaled, m.of(optim.NAdam), **exact(1, 2))
case("exact frozen", m.frozen, **exact(3, 1))
case("exact head alone", m.mlp, m.head_only, **exact(1, 2))
case("exact float64", m.Double, **exact(1, 2), expected="float64")
case("exact complex", m.Waves, **exact(1, 2), expected="complex64")
case("exact sparse", lambda: m.Embedded(sparse=True), m.of(optim.SGD), **exact(1, 2), expected="sparse")
case("exact batch norm", m.batch_normed, **exact(1, 2), expected="running statistics")
case("exact spectral", m.Spectral, **exact(1, 2), expected="layer.parametrizations.weight.0._u")
case("exact averaging", m.Averaging, **exact(1, 2), expected="mean")
case("exact taught", m.Taught, **exact(1, 2), expected="the parameter teacher.")
case("exact dropout in evaluation", m.AlwaysDrops, **exact(1, 3, 2, 3, metric="log_loss"))
case("exact lookahead", m.mlp, lambda model, rate, _: m.Lookahead(model.parameters(), rate), **exact(1, 3))
# Compiled.
case("compiled", m.blocks, settings={"compile": True}, slow=True)
case("ddp compiled", m.blocks, **two(compile=True), slow=True)
case("fsdp compiled", m.blocks, **two(FSDP, compile=True), slow=True)
