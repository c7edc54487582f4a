"""
What every objective for rows must do.

A test module of an objective makes a subclass of :class:`ObjectiveConformance` and gives the fixtures that it names::

    class TestMyObjective(ObjectiveConformance):
        @pytest.fixture
        def name(self):
            return "my_objective"

        @pytest.fixture
        def labels(self):
            return np.float32([0.0, 1.5, 0.0, 7.0])
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from mlops.contract.extensions import by_import_path
from mlops.contract.metrics import names_for
from mlops.contract.section import SpecError, check_section
from mlops.contract.sections.train import Train
from mlops.contract.step import BadConfigError, BadDataError
from mlops.data.shards.batch import Batch
from mlops.data.shards.feature_table import FeatureTable
from mlops.data.shards.loader import in_memory
from mlops.metrics.predictions import Floats
from mlops.objectives.objective import LoadedObjective, load_objective
from mlops.objectives.scoring import predict_batches, predict_table
from mlops.testing import no_recipe

ROWS_OF_A_GROUP: Final = 3


class Free(nn.Module):
    """A model whose outputs are parameters, looked up by the row's number, its only feature."""

    def __init__(self, num_rows: int, num_outputs: int) -> None:
        super().__init__()
        shape = (num_rows,) if num_outputs == 1 else (num_rows, num_outputs)
        self.outputs = nn.Parameter(0.1 * torch.randn(shape, generator=torch.Generator().manual_seed(0)))

    def forward(self, features: Tensor) -> Tensor:
        return self.outputs[features[..., 0].long()]


class ObjectiveConformance:
    """
    Tests of an objective whose inputs are rows. Fixtures: ``name``; ``labels``, ``[N]`` or ``[N, L]``, at least four
    valid ones that differ; ``settings`` and ``bad_labels``, none by default.
    """

    @pytest.fixture
    def settings(self) -> Mapping[str, Any]:
        return {}

    @pytest.fixture
    def bad_labels(self) -> Floats:
        """Return labels that the objective is not defined for; empty: there are none."""
        return np.empty(0, np.float32)

    @pytest.fixture
    def objective(self, name: str, settings: Mapping[str, Any]) -> LoadedObjective:
        return load_objective(name, settings, no_recipe)

    @pytest.fixture(params=[False, True], ids=["rows", "groups"])
    def grouped(self, request: pytest.FixtureRequest, objective: LoadedObjective) -> bool:
        if objective.spec.needs_groups and not request.param:
            pytest.skip("it needs groups")
        return bool(request.param)

    @pytest.fixture
    def table(self, labels: Floats, grouped: bool) -> FeatureTable:
        """Return the labels, six times over, in groups of uneven length where they are grouped."""
        repeated = np.concatenate([np.asarray(labels, np.float32)] * 6)
        features = np.arange(len(repeated), dtype=np.float32)[:, None]
        step = ROWS_OF_A_GROUP if grouped else 1
        offsets = np.unique([*range(0, len(repeated), step), len(repeated)]).astype(np.int64)
        if grouped:
            offsets = np.delete(offsets, 1)  # the first group is longer, so that others are padded
        return FeatureTable(features=features, labels=repeated, offsets=offsets)

    @pytest.fixture
    def model(self, table: FeatureTable, objective: LoadedObjective) -> Free:
        return Free(table.num_rows, objective.functions.num_outputs)

    def _batch(self, table: FeatureTable, grouped: bool, samples: list[int] | None = None) -> Batch:
        chosen = range(table.num_samples) if samples is None else samples
        return in_memory(table, grouped=grouped).gather(np.array(chosen, np.int64))

    def test_a_metric_fits(self, objective: LoadedObjective) -> None:
        """Broken: no pipeline could choose a best epoch."""
        assert objective.kind
        assert names_for(objective.kind)

    def test_the_loss_is_one_number_for_each_sample(
        self, objective: LoadedObjective, model: Free, table: FeatureTable, grouped: bool
    ) -> None:
        losses = objective.functions.loss(model, self._batch(table, grouped))
        assert losses.shape == (table.num_samples,)
        assert torch.isfinite(losses).all()

    def test_a_sample_s_loss_is_its_own(
        self, objective: LoadedObjective, model: Free, table: FeatureTable, grouped: bool
    ) -> None:
        """Broken: what a sample teaches would depend on those beside it, or on their padding."""
        together = objective.functions.loss(model, self._batch(table, grouped))
        for sample in range(table.num_samples):
            alone = objective.functions.loss(model, self._batch(table, grouped, [sample]))
            assert alone[0].item() == pytest.approx(together[sample].item(), rel=1e-5, abs=1e-6)

    def test_it_can_be_learnt(
        self, objective: LoadedObjective, model: Free, table: FeatureTable, grouped: bool
    ) -> None:
        optimizer, batch = torch.optim.Adam(model.parameters(), lr=0.05), self._batch(table, grouped)
        losses = []
        for _ in range(100):
            optimizer.zero_grad()
            loss = objective.functions.loss(model, batch).mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert np.isfinite(losses).all()
        assert losses[-1] < losses[0]

    def test_outputs_of_another_shape_are_refused(
        self, objective: LoadedObjective, table: FeatureTable, grouped: bool
    ) -> None:
        """Broken: ``[B, 1]`` against ``[B]`` is made ``[B, B]``, and the model learns nonsense in silence."""
        batch = self._batch(table, grouped)

        class Wrong(nn.Module):
            def forward(self, features: Tensor) -> Tensor:
                rows = batch.weights if batch.mask is None else batch.mask
                return torch.zeros(*rows.shape, 1 if objective.functions.num_outputs > 1 else 2)

        wrong = Wrong()
        with pytest.raises(BadConfigError, match="the model maps features"):
            objective.functions.loss(wrong, batch)
        with pytest.raises(BadConfigError, match="the model maps features"):
            objective.functions.predict(wrong(batch.features), batch)

    def test_predictions_come_in_the_order_of_the_rows(
        self, objective: LoadedObjective, model: Free, table: FeatureTable, grouped: bool
    ) -> None:
        """However they are cut into batches."""
        cpu, functions = torch.device("cpu"), objective.functions
        whole = predict_table(functions, model, table, cpu, grouped=grouped)
        several = [] if functions.num_outputs == 1 else [functions.num_outputs]
        assert list(whole.shape) == [table.num_rows, *several]
        source = in_memory(table, grouped=grouped)
        single = predict_batches(
            functions, model, (source.gather(np.array([sample])) for sample in range(table.num_samples)), cpu
        )
        np.testing.assert_array_equal(whole, single)

    def test_an_answer_has_its_columns(
        self, objective: LoadedObjective, model: Free, table: FeatureTable, grouped: bool
    ) -> None:
        """Broken: a server would answer other columns than the registered signature says."""
        predicted = predict_table(objective.functions, model, table, torch.device("cpu"), grouped=grouped)
        answer = objective.functions.answer(objective.predictions(table.labels, predicted, table.offsets))
        assert list(answer) == list(objective.functions.columns)
        for values in answer.values():
            assert values.shape == (table.num_rows,)
            assert np.isfinite(values).all() if np.issubdtype(values.dtype, np.number) else (values != "").all()

    def test_labels_are_checked(self, objective: LoadedObjective, labels: Floats, bad_labels: Floats) -> None:
        objective.functions.check_labels(np.asarray(labels, np.float32))
        for label in bad_labels:
            with pytest.raises(BadDataError, match="label"):
                objective.functions.check_labels(np.array([*labels, label], np.float32))

    def test_figures_are_drawn_with_a_champion_and_without(
        self, objective: LoadedObjective, model: Free, table: FeatureTable, grouped: bool
    ) -> None:
        draw = objective.figures()
        if draw is None:
            pytest.skip("it has none of its own")
        predicted = predict_table(objective.functions, model, table, torch.device("cpu"), grouped=grouped)
        candidate = objective.predictions(table.labels, predicted, table.offsets)
        champion = objective.predictions(table.labels, predicted[::-1].copy(), table.offsets)
        metric = names_for(objective.kind)[0].replace("@K", "@10")
        for models in ({"candidate": candidate}, {"candidate": candidate, "champion": champion}):
            found = draw(models, metric)
            assert found
            for title, figure in found:
                assert title
                figure.canvas.draw()

    def test_settings_are_checked_when_a_pipeline_is_parsed(
        self, name: str, settings: Mapping[str, Any], objective: LoadedObjective
    ) -> None:
        """Broken: a typing mistake would be found at night."""
        if by_import_path(name):
            pytest.skip("the scheduler does not import it")
        metric = names_for(objective.kind)[0].replace("@K", "@10")
        train = {"model": "include.a.model:build", "objective": name, "metric": metric}
        config = check_section(Train, {**train, "objective_settings": dict(settings)}, "train")
        assert Train.model_validate(config.model_dump(mode="json")) == config
        with pytest.raises(SpecError, match=r"unknown key 'objective_settings\.no_such_setting'"):
            check_section(Train, {**train, "objective_settings": {**settings, "no_such_setting": 1}}, "train")
