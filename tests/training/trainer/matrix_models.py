"""Models, losses and optimizers of odd kinds, as a recipe would write them; see ``matrix_cases.py``."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations

NUM_FEATURES = 5
"""An odd width."""


def mlp(width: int = 7, *, dropout: float = 0.1, norm: nn.Module | None = None, out: int = 1) -> nn.Sequential:
    middle = [norm] if norm is not None else []
    first, second = nn.Linear(NUM_FEATURES, width), nn.Linear(width, width)
    return nn.Sequential(
        first, *middle, nn.Tanh(), nn.Dropout(dropout), second, nn.Tanh(), nn.Linear(width, out), nn.Flatten(-2)
    )


def blocks(width: int = 6, depth: int = 3) -> nn.Sequential:
    middle = [nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Dropout(0.1)) for _ in range(depth)]
    return nn.Sequential(nn.Linear(NUM_FEATURES, width), *middle, nn.Linear(width, 1), nn.Flatten(-2))


class Wrapped(nn.Module):
    """Columns through layers that a subclass makes, then one score a row."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.head = nn.Linear(width, 1)

    def hidden(self, rows: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, rows: Tensor) -> Tensor:
        return self.head(self.hidden(rows)).squeeze(-1)


class Recurrent(Wrapped):
    """Reads a row's columns as a sequence."""

    def __init__(self, kind: type[nn.RNNBase], width: int = 6, **settings: Any) -> None:
        super().__init__(width * (2 if settings.get("bidirectional") else 1))
        self.cell = kind(1, width, batch_first=True, **settings)

    def hidden(self, rows: Tensor) -> Tensor:
        states, _ = self.cell(rows.unsqueeze(-1))
        return states[:, -1]


class Attention(Wrapped):
    def __init__(self, width: int = 6) -> None:
        super().__init__(width)
        self.lift = nn.Linear(1, width)
        self.layer = nn.TransformerEncoderLayer(width, 2, 9, dropout=0.1, batch_first=True)

    def hidden(self, rows: Tensor) -> Tensor:
        return self.layer(self.lift(rows.unsqueeze(-1))).mean(1)


class Convolution(Wrapped):
    def __init__(self, width: int = 3) -> None:
        super().__init__(width * NUM_FEATURES)
        self.layer = nn.Conv1d(1, width, 3, padding=1)

    def hidden(self, rows: Tensor) -> Tensor:
        return torch.tanh(self.layer(rows.unsqueeze(1))).flatten(1)


class Embedded(Wrapped):
    """Columns as words of a vocabulary of which each batch has a few."""

    def __init__(self, size: int = 23, *, sparse: bool = False, bag: bool = False, width: int = 4) -> None:
        super().__init__(width)
        kind = nn.EmbeddingBag if bag else nn.Embedding
        self.size, self.table = size, kind(size, width, sparse=sparse)

    def hidden(self, rows: Tensor) -> Tensor:
        words = (rows * 7).long() % self.size
        found = self.table(words)
        return torch.tanh(found if found.ndim == 2 else found.mean(1))


class Tied(Wrapped):
    """One matrix, used twice."""

    def __init__(self, width: int = 5) -> None:
        super().__init__(width)
        self.first, self.second = nn.Linear(NUM_FEATURES, width), nn.Linear(NUM_FEATURES, width)
        self.second.weight = self.first.weight

    def hidden(self, rows: Tensor) -> Tensor:
        return torch.tanh(self.second(torch.tanh(self.first(rows))))


class Experts(Wrapped):
    """A row goes to one of the experts, by its first column: not every batch has rows for each."""

    def __init__(self, number: int = 4, width: int = 4, threshold: float = 0.9) -> None:
        super().__init__(width)
        self.experts = nn.ModuleList(nn.Linear(NUM_FEATURES, width) for _ in range(number))
        self.threshold = threshold

    def hidden(self, rows: Tensor) -> Tensor:
        chosen = (rows[:, 0].abs() / self.threshold).long().clamp(max=len(self.experts) - 1)
        out = rows.new_zeros(len(rows), self.head.in_features)
        for number, expert in enumerate(self.experts):
            mine = chosen == number
            if mine.any():
                out[mine] = torch.tanh(expert(rows[mine]))
        return out


class DropsLayers(Wrapped):
    """Leaves out layers at random, each rank others."""

    def __init__(self, width: int = 6, depth: int = 3) -> None:
        super().__init__(width)
        self.first = nn.Linear(NUM_FEATURES, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.calls = 0

    def hidden(self, rows: Tensor) -> Tensor:
        out = self.first(rows)
        for layer in self.layers:
            # Not in the first pass, so that all layers have gradients after the first step.
            if self.training and self.calls and torch.rand(()) < 0.6:
                continue
            out = torch.tanh(layer(out))
        self.calls += self.training
        return out


class Scaled(Wrapped):
    """With parameters of no dimension."""

    def __init__(self, width: int = 6) -> None:
        super().__init__(width)
        self.layer = nn.Linear(NUM_FEATURES, width)
        self.gain, self.shift = nn.Parameter(torch.tensor(0.5)), nn.Parameter(torch.tensor(0.1))

    def hidden(self, rows: Tensor) -> Tensor:
        return torch.tanh(self.layer(rows)) * self.gain + self.shift


class Waves(Wrapped):
    """Complex weights."""

    def __init__(self, width: int = 4) -> None:
        super().__init__(width)
        self.weight = nn.Parameter(torch.randn(NUM_FEATURES, width, dtype=torch.complex64) / 3)

    def hidden(self, rows: Tensor) -> Tensor:
        return (rows.to(torch.complex64) @ self.weight).abs()


class Double(Wrapped):
    """A part in float64."""

    def __init__(self, width: int = 4) -> None:
        super().__init__(width)
        self.layer = nn.Linear(NUM_FEATURES, width, dtype=torch.float64)

    def hidden(self, rows: Tensor) -> Tensor:
        return torch.tanh(self.layer(rows.double())).float()


class Spectral(Wrapped):
    def __init__(self, width: int = 6) -> None:
        super().__init__(width)
        self.layer = parametrizations.spectral_norm(nn.Linear(NUM_FEATURES, width))

    def hidden(self, rows: Tensor) -> Tensor:
        return torch.tanh(self.layer(rows))


class WeightNormed(Wrapped):
    def __init__(self, width: int = 6) -> None:
        super().__init__(width)
        self.layer = parametrizations.weight_norm(nn.Linear(NUM_FEATURES, width))

    def hidden(self, rows: Tensor) -> Tensor:
        return torch.tanh(self.layer(rows))


class Averaging(Wrapped):
    """Keeps a mean of its inputs in a buffer of its own."""

    def __init__(self, *, persistent: bool = True) -> None:
        super().__init__(NUM_FEATURES)
        self.register_buffer("mean", torch.zeros(NUM_FEATURES), persistent=persistent)

    def hidden(self, rows: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                self.mean.lerp_(rows.mean(0), 0.1)
        return rows - self.mean


class Cached(Wrapped):
    """Keeps a table that it could make again."""

    def __init__(self) -> None:
        super().__init__(NUM_FEATURES)
        self.register_buffer("places", torch.zeros(0), persistent=False)

    def hidden(self, rows: Tensor) -> Tensor:
        if len(self.places) != NUM_FEATURES:
            self.places = torch.arange(NUM_FEATURES) / 7.0
        return rows * torch.cos(self.places)


class Noisy(Wrapped):
    """Draws from a generator of its own."""

    def __init__(self) -> None:
        super().__init__(NUM_FEATURES)
        self.source = torch.Generator().manual_seed(3)

    def hidden(self, rows: Tensor) -> Tensor:
        return rows + 0.1 * torch.randn(rows.shape, generator=self.source) if self.training else rows


class Counting(Wrapped):
    """Its temperature falls with the number of calls, which Python counts."""

    def __init__(self) -> None:
        super().__init__(NUM_FEATURES)
        self.calls = 0

    def hidden(self, rows: Tensor) -> Tensor:
        self.calls += self.training
        return rows * (1 + 1 / (1 + self.calls))


_CALLS = itertools.count()


class Global(Wrapped):
    """Its noise depends on a counter of the module."""

    def __init__(self) -> None:
        super().__init__(NUM_FEATURES)

    def hidden(self, rows: Tensor) -> Tensor:
        return rows * (1 + 1 / (1 + next(_CALLS)))


class Numpy(Wrapped):
    """Draws from numpy's global generator."""

    def __init__(self) -> None:
        super().__init__(NUM_FEATURES)

    def hidden(self, rows: Tensor) -> Tensor:
        import numpy as np

        return rows + float(np.random.normal()) if self.training else rows


class Quantised(Wrapped):
    """Learns its range in the first batches (as LSQ), with a flag in a buffer."""

    def __init__(self, width: int = 6) -> None:
        super().__init__(width)
        self.layer = nn.Linear(NUM_FEATURES, width)
        self.register_buffer("started", torch.zeros((), dtype=torch.bool))
        self.register_buffer("range", torch.ones(()))

    def hidden(self, rows: Tensor) -> Tensor:
        if self.training and not self.started:
            with torch.no_grad():
                self.range.copy_(rows.abs().max())
                self.started.fill_(True)
        return torch.tanh(self.layer(rows / self.range))


class AlwaysDrops(Wrapped):
    """Drops out in evaluation mode too, as F.dropout does where nobody says otherwise."""

    def __init__(self) -> None:
        super().__init__(NUM_FEATURES)

    def hidden(self, rows: Tensor) -> Tensor:
        return functional.dropout(rows, 0.3)


class Taught(Wrapped):
    """Has a teacher, a frozen copy that each forward pass moves towards the layer (as MoCo and BYOL do)."""

    def __init__(self, width: int = 6) -> None:
        super().__init__(width)
        self.layer = nn.Linear(NUM_FEATURES, width)
        self.teacher = copy.deepcopy(self.layer).requires_grad_(False)

    def hidden(self, rows: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                for theirs, ours in zip(self.teacher.parameters(), self.layer.parameters(), strict=True):
                    theirs.lerp_(ours, 0.1)
        return torch.tanh(self.layer(rows)) - 0.5 * torch.tanh(self.teacher(rows))


class Bank(Wrapped):
    """Keeps all rows that it has seen."""

    def __init__(self) -> None:
        super().__init__(NUM_FEATURES)
        self.register_buffer("bank", torch.zeros(1, NUM_FEATURES))

    def hidden(self, rows: Tensor) -> Tensor:
        if self.training:
            self.bank = torch.cat([self.bank, rows.detach()])
        return rows - self.bank.mean(0)


class Spare(Wrapped):
    """Has a weight that nothing uses."""

    def __init__(self) -> None:
        super().__init__(NUM_FEATURES)
        self.spare = nn.Parameter(torch.zeros(3))

    def hidden(self, rows: Tensor) -> Tensor:
        return rows


def frozen() -> nn.Sequential:
    model = mlp()
    for parameter in model[0].parameters():
        parameter.requires_grad_(False)
    return model


def batch_normed() -> nn.Sequential:
    return mlp(norm=nn.BatchNorm1d(7))


def grouped(model: nn.Module) -> nn.Module:
    return _Rows(model)


class _Rows(nn.Module):
    """A model of rows, on groups of rows."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, groups: Tensor) -> Tensor:
        return self.model(groups.flatten(0, 1)).view(groups.shape[:2])


def penalised(model: nn.Module, batch: Any) -> Tensor:
    """A loss with a term of its own, on the first weight."""
    losses = functional.binary_cross_entropy_with_logits(model(batch.features), batch.labels, reduction="none")
    return losses + 0.01 * next(model.parameters()).square().sum()


def noisy_loss(model: nn.Module, batch: Any) -> Tensor:
    losses = functional.binary_cross_entropy_with_logits(model(batch.features), batch.labels, reduction="none")
    return losses * (1 + 0.1 * torch.rand_like(losses))


class Lookahead(torch.optim.Optimizer):
    """SGD whose slow weights (Zhang et al. 2019) it makes at its second step."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr, "steps": 0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group["steps"] += 1
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                parameter.sub_(parameter.grad, alpha=group["lr"])
                if group["steps"] == 2:
                    self.state[parameter]["slow"] = parameter.clone()
                elif group["steps"] > 2:
                    slow = self.state[parameter]["slow"]
                    slow.lerp_(parameter, 0.5)
                    parameter.copy_(slow)


class Forgetful(torch.optim.Optimizer):
    """Counts its steps where no checkpoint sees it."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})
        self.count = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.count += 1
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(parameter.grad, alpha=group["lr"] / self.count)


class Averaged(torch.optim.SGD):
    """SGD with a mean of all weights, and the history of its gradients' largest values."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        super().step()
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                mean = state.setdefault("mean", parameter.clone())
                mean.lerp_(parameter, 0.2)
                state["largest"] = [*state.get("largest", [])[-2:], float(parameter.grad.abs().max())]
                state["last"] = [*state.get("last", [])[-1:], parameter.grad.clone()]
                if len(state["largest"]) > 2 and state["largest"][0] > state["largest"][2]:
                    parameter.add_(state["last"][0], alpha=-0.1 * group["lr"])


def decayed(model: nn.Module, rate: float, decay: float) -> torch.optim.Optimizer:
    """Two groups: biases without decay, at another rate."""
    matrices = [each for each in model.parameters() if each.ndim > 1]
    others = [each for each in model.parameters() if each.ndim <= 1]
    return torch.optim.AdamW([{"params": matrices}, {"params": others, "weight_decay": 0.0, "lr": rate / 2}], lr=rate)


def head_only(model: nn.Module, rate: float, decay: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(list(model.parameters())[-2:], lr=rate, momentum=0.9)


def twice(model: nn.Module, rate: float, decay: float) -> torch.optim.Optimizer:
    parameters = list(model.parameters())
    return torch.optim.SGD([{"params": parameters}, {"params": parameters[:1]}], lr=rate)


def foreign(model: nn.Module, rate: float, decay: float) -> torch.optim.Optimizer:
    return torch.optim.SGD([*model.parameters(), nn.Parameter(torch.ones(2))], lr=rate)


def muon(model: nn.Module, rate: float, decay: float) -> torch.optim.Optimizer:
    return torch.optim.Muon([each for each in model.parameters() if each.ndim == 2], lr=rate, weight_decay=decay)


def sparse_adam(model: nn.Module, rate: float, decay: float) -> torch.optim.Optimizer:
    return torch.optim.SparseAdam([each for name, each in model.named_parameters() if "table" in name], lr=rate)


def of(kind: type[torch.optim.Optimizer], **settings: Any) -> Any:
    def configure(model: nn.Module, rate: float, decay: float) -> torch.optim.Optimizer:
        return kind(model.parameters(), lr=rate, **settings)

    return configure
