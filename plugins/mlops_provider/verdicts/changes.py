"""What differs between two runs of a pipeline: settings, code, schema, data."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from mlops.contract.refs import CheckpointRef, DatasetRef, FeaturesRef, Ref, ValidationRef
from mlops.contract.settings import flat_settings

_MOST_SETTINGS: Final = 6
_MOST_FILES: Final = 5
_MOST_CHARACTERS: Final = 60
"""Of a value."""
_WORTH_A_WORD: Final = 100
"""Two nights' data differ in rows where they do by more than one of so many."""
_FORMS: Final = ("%Y-%m-%dT%H", "%Y-%m-%d-%H", "%Y%m%dT%H", "%Y/%m/%d/%H", "%Y-%m-%d", "%Y%m%d", "%Y/%m/%d")
"""In which paths name a night, the longer ones first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """What is known of a run by what Airflow keeps of its tasks."""

    moments: Sequence[datetime] = ()
    """When it was due, and the data's interval."""
    given: Mapping[str, Any] = field(default_factory=dict)
    """What it was triggered with."""
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Of the steps as each was rendered, by task; Airflow keeps those of the newest runs."""
    code: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Digests of the user's files by their paths, by task."""
    refs: Mapping[str, Ref] = field(default_factory=dict)
    """What the steps returned, by task."""
    bundle: str = ""
    """Version of the DAG bundle, such as a commit; empty where the bundle has none."""
    version: int | None = None
    """Of the DAG, which Airflow counts up with each change of its tasks or their settings."""


def changes(before: Facts, now: Facts) -> list[str]:
    """
    Say what differs, what people change first.

    :return: phrases; tasks that only one of the two runs has come to are passed over
    """
    return [*_settings(before, now), *_code(before, now), *_data(before, now)]


def _settings(before: Facts, now: Facts) -> Iterator[str]:
    both = [(f"{task}.", before.settings[task], own) for task, own in now.settings.items() if task in before.settings]
    told = [
        f"{prefix}{name} {_short(was)} -> {_short(own)}"
        for prefix, earlier, later in [("triggered with ", before.given, now.given), *both]
        for name, was, own in _differing(flat_settings(earlier), flat_settings(later))
        if _undated(was, before.moments) != _undated(own, now.moments)
    ]
    yield from told[:_MOST_SETTINGS]
    if len(told) > _MOST_SETTINGS:
        yield f"{len(told) - _MOST_SETTINGS} more settings"


def _undated(value: Any, moments: Sequence[datetime]) -> Any:
    """A path that names the night's own day says the same in each night."""
    if isinstance(value, str):
        for form, moment in itertools.product(_FORMS, moments):
            value = value.replace(moment.strftime(form), form)
    return value


def _differing(earlier: Mapping[str, Any], later: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    for name in [*later, *(name for name in earlier if name not in later)]:
        if earlier.get(name) != later.get(name):
            yield name, earlier.get(name), later.get(name)


def _short(value: Any) -> str:
    text = "not set" if value is None else str(value)
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 3]}..."


def _code(before: Facts, now: Facts) -> Iterator[str]:
    # Most steps run files of the same folder.
    told = list(dict.fromkeys(each for task in now.code for each in _files(before.code.get(task), now.code[task])))
    if told:
        more = f", and {len(told) - _MOST_FILES} more" if len(told) > _MOST_FILES else ""
        yield f"changed {', '.join(told[:_MOST_FILES])}{more}"
    if before.version and now.version and before.version != now.version:
        yield f"DAG version {before.version} -> {now.version}"
    if before.bundle and now.bundle and before.bundle != now.bundle:
        yield f"DAG bundle {before.bundle[:12]} -> {now.bundle[:12]}"


def _files(before: Mapping[str, str] | None, now: Mapping[str, str]) -> Iterator[str]:
    if before is None:
        return
    # Of very many files only their folders are known, perhaps of one of the two.
    folders = [path for path in (*before, *now) if path.endswith("/")]
    for path, was, own in _differing(before, now):
        within = next(filter(path.startswith, folders), None)
        yield within or (f"{path} (new)" if was is None else f"{path} (gone)" if own is None else path)


def _data(before: Facts, now: Facts) -> Iterator[str]:
    for task, ref in now.refs.items():
        match before.refs.get(task), ref:
            case DatasetRef() as was, DatasetRef() as is_:
                if was.schema_hash != is_.schema_hash:
                    yield f"other columns or types in the snapshot of {task}"
                rows = was.num_rows, is_.num_rows
                # Who may edit XComs can put anything there.
                if all(isinstance(each, int) for each in rows) and _WORTH_A_WORD * abs(rows[1] - rows[0]) > rows[0]:
                    yield f"rows of {task} {rows[0]} -> {rows[1]}"
            case ValidationRef() as was, ValidationRef() as is_ if was.schema_sha256 != is_.schema_sha256:
                yield f"another schema for {task}"
            case FeaturesRef() as was, FeaturesRef() as is_ if was.num_features != is_.num_features:
                yield f"features {was.num_features} -> {is_.num_features}"
            case CheckpointRef() as was, CheckpointRef() as is_ if was.world_size != is_.world_size:
                yield f"processes of {task} {was.world_size} -> {is_.world_size}"
