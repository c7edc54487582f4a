"""The files of a first recipe, as a person would write them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from typing import Any, Final

from mlops.first_recipe.proposal import METRICS, Proposal
from mlops.first_recipe.table import Table

WORDS: Final = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})
"""Names that are no texts in YAML."""
_FEW_ROWS: Final = 400
"""Below which a leaf of LightGBM's trees may have fewer rows than its own 20."""
_ROWS_OF_A_LEAF: Final = 20
"""A leaf has one row at least of so many in the table."""
_PLAIN: Final = re.compile(r"[A-Za-z_/][\w./-]*")


def features_text(name: str, proposal: Proposal) -> str:
    """``include/NAME/features.py``."""
    used = sorted({code.partition("(")[0] for code in proposal.transforms.values()} | {"FeatureSet"})
    lines = [f'"""What the model sees of a row of {name}."""', "", "from __future__ import annotations", ""]
    if proposal.where is not None:
        lines += ["import narwhals as nw", ""]
    lines += [f"from mlops import {', '.join(used)}", "", "FEATURES = FeatureSet(", f"    label={proposal.label!r},"]
    if proposal.classes:
        lines.append(f"    classes={list(proposal.classes)!r},")
    if proposal.where is not None:
        lines.append(f"    where={proposal.where},")
    lines += ["    transforms=[", *(f"        {code}," for code in proposal.transforms.values())]
    lines += [f"        # {column!r} is left out: {why}" for column, why in proposal.left_out.items()]
    return "\n".join([*lines, "    ],", ")", ""])


def pipeline_text(name: str, table: Table, proposal: Proposal, today: date) -> str:
    """``dags/NAME.pipeline.yaml``."""
    time, (metric, other) = proposal.time, METRICS[proposal.objective]
    source = dict(table.source)
    if time is None:
        source["as_of"] = _read_at(table)
    else:
        source["event_time"] = time.column
        if time.zone is not None:
            source["time_zone"] = time.zone
    lines = [f"pipeline: {name}", f"description: {_scalar(f'Learn {proposal.label} of {name}')}"]
    if time is not None and time.zone not in (None, "UTC"):
        lines.append(f"timezone: {time.zone}")
    if time is None:
        lines.append(f"start_date: {today - timedelta(days=1)}")
    else:
        lines.append(f"start_date: {time.first}")
        if time.end < today:
            lines.append(f"end_date: {time.end}  # the file ends here: remove this where rows are added")
    lines += ["", "ingest:", "  sources:", f"    {name}: {_flow(source)}"]
    lines.append(f"  event_time: {_scalar(_read_at(table) if time is None else time.column)}")
    lines += _split(proposal)
    lines += ["", "validate:", f"  schema_path: include/{name}/schema.pbtxt"]
    if time is not None and time.tolerance != 0.2:
        lines.append("  volume: " + ("null" if time.tolerance is None else f"{{tolerance: {time.tolerance}}}"))
    lines += ["", "features:", f"  feature_set: include.{name}.features:FEATURES", "", "train:", "  learner: lightgbm"]
    # Its own 20 would leave nothing to learn of a small table.
    leaf = {"min_data_in_leaf": max(1, table.num_rows // _ROWS_OF_A_LEAF)} if table.num_rows < _FEW_ROWS else {}
    lines += [f"  learner_settings: {_flow({'rounds_per_epoch': 10, **leaf})}", f"  objective: {proposal.objective}"]
    if proposal.objective == "multiclass":
        lines.append(f"  objective_settings: {{classes: {_flow([_class_name(each) for each in proposal.classes])}}}")
    lines += [f"  metric: {metric}", "  epochs: 20", "  early_stopping: {patience: 3}", "", "evaluate:"]
    lines += [f"  registered_model: {name}", f"  metric: {metric}", f"  metrics: [{other}]", ""]
    return "\n".join([*lines, f"register: {{registered_model: {name}}}", ""])


def _split(proposal: Proposal) -> list[str]:
    time = proposal.time
    if time is None:
        return ["  window: 1", "  split: {rows: hash, validation: 0.2, test: 0.2}"]
    lines = [f"  grain: {time.grain}"] if time.grain != "day" else []
    lines.append(f"  window: {time.window}")
    if time.gaps:
        lines.append(f"  calendar: {{gaps: {time.gaps}}}  # {time.grain}s in a row without rows")
    if time.held_out:
        return [*lines, f"  split: {{validation: {time.held_out}, test: {time.held_out}}}  # the newest {time.grain}s"]
    return [*lines, "  split: {rows: hash, validation: 0.2, test: 0.2}"]


def _read_at(table: Table) -> str:
    """The column with the time at which a table without a time of its own is read: one that it does not have."""
    name = "read_at"
    while name in table.rows.columns:
        name += "_"
    return name


def _class_name(value: object) -> str:
    """As :attr:`mlops.FeatureSet.class_names` calls it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _flow(value: Any) -> str:
    """A value in one line of YAML."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_flow(each)}" for key, each in value.items()) + "}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ", ".join(map(_flow, value)) + "]"
    return _scalar(value)


def _scalar(value: Any) -> str:
    """A text or a number in YAML; JSON's quotes are YAML's too."""
    text = str(value)
    return text if _PLAIN.fullmatch(text) and text.lower() not in WORDS else json.dumps(value, ensure_ascii=False)
