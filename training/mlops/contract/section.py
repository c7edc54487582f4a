"""What the sections of a pipeline have in common: a typed base, and mistakes said in a sentence."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, TypeVar
from zoneinfo import ZoneInfo

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    StringConstraints,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from mlops.contract.step import BadConfigError


def _as_text(value: object) -> object:
    """YAML reads ``cpu: 2`` as a number."""
    return str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value


def _finite(value: object) -> object:
    """JSON holds no other numbers. Asked of a union of types, pydantic would say it once for each of them."""
    if any(isinstance(each, (bytes, set)) for _, each in leaves(value)):
        raise ValueError("text, numbers, true, false, null, and lists and mappings of them")
    try:
        json.dumps(value, allow_nan=False, default=str)
    except ValueError:
        raise ValueError("a finite number" if isinstance(value, float) else "without infinity and NaN") from None
    return value


def _text_keys(value: object) -> object:
    _check_keys(value)
    return value


def _check_keys(value: object, path: tuple[str, ...] = ()) -> None:
    """JSON makes text of every key, so that a step would look in vain for the number that a file has."""
    inner: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, Mapping):
        inner = value.items()
    elif isinstance(value, list):
        inner = ((str(place), each) for place, each in enumerate(value))
    for key, each in inner:
        if not isinstance(key, str):
            where = f" in {'.'.join(path)}" if path else ""
            raise ValueError(
                f"a mapping by text, which JSON would make of the key {key!r}{where}: put it in quotes, or give a list"
            )
        _check_keys(each, (*path, key))


FINITE = BeforeValidator(_finite)
Number = Annotated[int | float, FINITE]
Json = Annotated[Any, FINITE]
"""What another section checks, or what JSON holds."""
TextKeyed = Annotated[Any, FINITE, BeforeValidator(_text_keys)]
"""What is passed on as it is given."""
IMPORT_PATH_PATTERN = r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$"
ImportPath = Annotated[str, StringConstraints(pattern=IMPORT_PATH_PATTERN)]
"""``package.module:name``"""
TRANSFORM_PATTERN = r"^([A-Za-z_][\w.]*:[A-Za-z_]\w*|include/\w+/([\w-][\w.-]*/)*[\w-][\w.-]*\.sql)$"
Transform = Annotated[str, StringConstraints(pattern=TRANSFORM_PATTERN)]
"""An import path, or a file ``include/<pipeline>/<name>.sql``."""
PROGRAM_PATTERN = r"^include/\w+/(\w+/)*[A-Za-z_]\w*\.py$"
Program = Annotated[str, StringConstraints(pattern=PROGRAM_PATTERN)]
"""A file ``include/<pipeline>/<name>.py``."""
NAME_PATTERN = r"^[a-z][a-z0-9_]*$"
Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
"""Lower-case letters, digits and underscores."""
EXTENSION_PATTERN = r"^([a-z][a-z0-9_]*|[A-Za-z_][\w.]*:[A-Za-z_]\w*)$"
"""Name of something that packages add, or its import path."""
METRIC_PATTERN = r"^([a-z][a-z0-9_]*|[A-Za-z_][\w.]*:[A-Za-z_]\w*)(@\d+(\.\d+)?)?$"
"""As :data:`EXTENSION_PATTERN`, with a number where the metric takes one: ``ndcg@10``."""
QUANTITY_PATTERN = r"^\d+(\.\d+)?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$"
Quantity = Annotated[str, StringConstraints(pattern=QUANTITY_PATTERN), BeforeValidator(_as_text)]
"""A quantity as Kubernetes writes it: ``500m`` CPUs, ``4Gi`` bytes."""
EXPERIMENT_NAME_PATTERN = r"^[a-z][a-z0-9_]{0,99}$"
"""It is part of a folder's name, which a file system takes up to 255 characters of."""
OBJECT_NAME_PATTERN = r"^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$"
ObjectName = Annotated[str, StringConstraints(pattern=OBJECT_NAME_PATTERN)]
"""Name of a Kubernetes object: lower-case letters, digits, dots and dashes."""
PATH_PATTERN = r"^/[^:]*$"
URL_PATTERN = r"^https?://[^/\s]+.*$"
TEXT_PATTERN = r"\S"
CLAIM_PATTERN = r"^[A-Za-z0-9_][A-Za-z0-9_.@\-]{0,99}$"
"""The name of a metric that is claimed; MLflow takes it, with ``_at_`` for ``@``."""
LABEL_PATTERN = r"^[!-~][ -~]{0,99}$"
"""A line of printable ASCII, to be kept as it is."""
RULE_PATTERN = r"^\s*([A-Za-z_]\w*)\s*(<=|>=|<|>)\s*(-?\d+(?:\.\d+)?(?:[eE]-?\d+)?)\s*$"
AbsolutePath = Annotated[str, StringConstraints(pattern=PATH_PATTERN)]
Text = Annotated[str, StringConstraints(strip_whitespace=True, pattern=TEXT_PATTERN)]
"""Not blank."""
PREFIX_PATTERN = r"^[a-z][a-z0-9_]*_$"
STORE_PATTERN = r"^(file://(/[^/?#]+)+|s3://[^/?#]+(/[^/?#]+)*)$"
FOLDER_PATTERN = r"^[^/:]+(/[^/:]+)*$"
TEAM_PATTERN = r"^[A-Za-z0-9_-]{3,50}$"
USER_PATTERN = r"^[a-z_][a-z0-9_.-]*$"
HOLIDAYS_PATTERN = r"^[A-Z][A-Z0-9]{1,3}(-[A-Z0-9]{1,3})?$"
Holidays = Annotated[str, StringConstraints(pattern=HOLIDAYS_PATTERN)]
"""Code of a country, with or without its subdivision, or of a market: ``US``, ``US-NY``, ``XNYS``."""
DIGEST_PATTERN = r"^[0-9a-f]{64}$"
Digest = Annotated[str, StringConstraints(pattern=DIGEST_PATTERN)]
"""A SHA-256."""


def known_time_zone(value: str) -> str:
    """:raises ValueError: where it is no IANA time zone"""
    try:
        ZoneInfo(value)
    except (ValueError, OSError, LookupError):
        raise ValueError("an IANA time zone such as America/New_York") from None
    return value


TimeZone = Annotated[str, AfterValidator(known_time_zone)]
"""An IANA time zone."""


def alike(claimed: Iterable[str]) -> str | None:
    """Say which two names of claimed metrics would be one in MLflow, and one claim lost; None where none would."""
    known: dict[str, str] = {}
    for name in claimed:
        if (other := known.setdefault(name.replace("@", "_at_"), name)) != name:
            return f"MLflow calls {other} and {name} alike, so that one would be lost; leave one of them out"
    return None


_WANTED = {
    "union_tag_invalid": "have a {discriminator} that is one of {expected_tags}, not {tag}",
    "union_tag_not_found": "say its {discriminator}",
    "too_short": "have at least {min_length} item, has {actual_length}",
    "dict_type": "be settings by name, as {{name: value}}",
    "model_type": "be settings by name, as {{name: value}}",
    "model_attributes_type": "be settings by name, as {{name: value}}",
    "list_type": "be a list",
}
"""Findings of pydantic that speak of Python."""


_PATTERNS: Final = {
    NAME_PATTERN: "must be lower-case letters, digits and underscores",
    METRIC_PATTERN: "must be a name such as auc or ndcg@10, or an import path",
    EXTENSION_PATTERN: "must be a name such as ranking, or an import path",
    QUANTITY_PATTERN: "must be a quantity such as 500m, 2, 4Gi",
    OBJECT_NAME_PATTERN: "must be a Kubernetes name: lower-case letters, digits, dots and dashes",
    PATH_PATTERN: "must be an absolute path",
    TEXT_PATTERN: "must not be blank",
    CLAIM_PATTERN: "must be a name such as auc or ndcg@10: letters, digits, and _ . @ -",
    LABEL_PATTERN: "must be a line of at most 100 printable characters, such as 3.1",
    DIGEST_PATTERN: "must be a SHA-256, 64 hexadecimal digits",
    HOLIDAYS_PATTERN: "must be the code of a country, of a part of it, or of a market, such as US, US-NY, XNYS",
    PREFIX_PATTERN: "must be lower-case letters, digits and underscores, and end with an underscore",
    STORE_PATTERN: "must be file:///folder or s3://bucket/prefix, without a / at its end",
    FOLDER_PATTERN: "must be a folder below the DAGs folder, such as search",
    TEAM_PATTERN: "must be the name of a team: 3 to 50 letters, digits, dashes and underscores",
    USER_PATTERN: "must be the name of a user of the operating system",
    URL_PATTERN: "must be an address such as http://prometheus:9090",
    RULE_PATTERN: "must be a rule such as error_rate <= 0.01",
    PROGRAM_PATTERN: "must be a file such as include/my_pipeline/train.py",
    TRANSFORM_PATTERN: "must be an import path such as include.my_pipeline.dataset:rows, "
    "or a file such as include/my_pipeline/dataset.sql",
}
"""What a text must be, by the pattern that it does not match."""


_UNKNOWN: Final = "unknown_setting"
"""Type of a finding of ours: a key that is not known, with a hint."""


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)

    operational: ClassVar[frozenset[str]] = frozenset()
    """Settings that decide how work is done, and not what comes out: after a change of them it is not done again."""

    @model_validator(mode="before")
    @classmethod
    def _numbers_and_no_truths(cls, value: Any) -> Any:
        """Python takes ``true`` for 1: one epoch, where somebody has mixed up two settings."""
        # Not a validator of the fields: pydantic allows none for one that tells several kinds apart.
        problems: list[InitErrorDetails] = []
        for name, field in cls.model_fields.items() if isinstance(value, Mapping) else ():
            given = value.get(field.alias or name)
            if not any(isinstance(each, bool) for each in (given if isinstance(given, list) else [given])):
                continue
            kinds = {*_types(field.annotation)}
            if kinds & {int, float} and not kinds & {bool, Any}:
                reason = PydanticCustomError("truth", "a number, and neither true nor false")
                problems.append({"type": reason, "loc": (field.alias or name,), "input": given})
        if problems:
            raise ValidationError.from_exception_data(cls.__name__, problems)
        return value


class NoSettings(Section):
    """The section of what has nothing to set."""


class SpecError(BadConfigError, ValueError):
    """A setting is wrong; the message names the place, the value and the fix."""


SectionT = TypeVar("SectionT", bound=Section)


def check_section(section: type[SectionT], settings: Mapping[str, Any], place: str) -> SectionT:
    """
    Make a section of settings.

    :param place: where the settings stand, the beginning of the message
    :raises SpecError: one line for each mistake
    """
    try:
        return section.model_validate(settings)
    except ValidationError as error:
        lines = [f"{place}: {describe(section, problem)}" for problem in error.errors()]
        raise SpecError("\n".join(lines)) from None


def describe(section: type[Section], problem: ErrorDetails) -> str:
    """Say one of pydantic's findings in a sentence: the setting, the value and what would do."""
    path = list(keys_of(problem))
    name = ".".join(path) or "settings"
    if problem["type"] == "extra_forbidden":
        known = _keys_at(section, [str(part) for part in problem["loc"][:-1]])
        return f"unknown key {name!r}; {_hint(path[-1], known)}"
    if problem["type"] == _UNKNOWN:
        return f"unknown key {name!r}; {problem['msg']}"
    if problem["type"] == "missing":
        return f"the key {name!r} is missing"
    return f"{name} {requirement(problem)}"


def requirement(problem: ErrorDetails) -> str:
    """Say what would do in place of a value that pydantic refuses, and the value: ``must be >= 1, got 0``."""
    value = problem["input"]
    if problem["type"] == "string_pattern_mismatch":
        wanted = _PATTERNS.get(
            str(problem["ctx"]["pattern"]), "must be an import path such as include.my_pipeline.model:build_model"
        )
        return f"{wanted}, got {value!r}"
    got = "" if isinstance(value, (Mapping, BaseModel)) else f", got {value!r}"
    if problem["type"] in _WANTED:
        said = {key: str(said).replace("'", "") for key, said in problem.get("ctx", {}).items()}
        return f"must {_WANTED[problem['type']].format(**said)}{got}"
    message = problem["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    message = message.replace("greater than or equal to", ">=").replace("less than or equal to", "<=")
    message = message.replace("greater than", ">").replace("less than", "<")
    return f"must be {message}{got}"


def _hint(key: str, known: Sequence[str]) -> str:
    if not known:
        return "there is nothing to set; leave it out"
    near = difflib.get_close_matches(key, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known keys are {', '.join(known)}"


def within(section: type[Section], settings: Mapping[str, Any]) -> dict[str, Any]:
    """
    Check settings that stand within another section, whose class does not say what they are; return them with their
    defaults.

    :raises ValidationError: of pydantic, to be raised by a validator of the other section; an unknown key comes with a
        hint at those of this one
    """
    try:
        return section.model_validate(settings).model_dump(mode="json")
    except ValidationError as error:
        problems: list[InitErrorDetails] = []
        for each in error.errors():
            kind: Any = each["type"]
            if kind == "extra_forbidden":
                *place, key = keys_of(each)
                kind = PydanticCustomError(_UNKNOWN, "{hint}", {"hint": _hint(key, _keys_at(section, place))})
            problem = InitErrorDetails(type=kind, loc=each["loc"], input=each["input"])
            if isinstance(kind, str) and "ctx" in each:
                problem["ctx"] = each["ctx"]
            problems.append(problem)
        raise ValidationError.from_exception_data(section.__name__, problems) from None


def leaves(settings: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Each value that is neither a mapping nor a list, with the keys and indexes that lead to it."""
    inner: Iterable[tuple[Any, Any]] = ()
    if isinstance(settings, Mapping):
        inner = settings.items()
    elif isinstance(settings, list):
        inner = enumerate(settings)
    else:
        yield path, settings
    for key, value in inner:
        yield from leaves(value, (*path, str(key)))


def keys_of(problem: ErrorDetails) -> tuple[str, ...]:
    """Where pydantic found a problem, as the user wrote it: without the ``(Class)`` of a setting of several kinds."""
    return tuple(part for part in map(str, problem["loc"]) if not part.startswith("(") and part != "[key]")


def _keys_at(section: type[BaseModel], path: Sequence[str]) -> list[str]:
    """The keys that the section at a path knows."""
    kinds: list[type[BaseModel]] = []
    for part in path:
        if part.startswith("("):
            section = next(kind for kind in kinds if kind.__name__ == part.strip("()"))
            continue
        field = next((f for n, f in section.model_fields.items() if part in (n, f.alias)), None)
        if field is None:
            continue  # a key of a mapping; its value's class was found one step before
        # A source may have the name of one of its own settings.
        kinds = [t for t in _types(field.annotation) if issubclass(t, BaseModel)] or kinds
        section = next(iter(kinds), section)
    return [field.alias or name for name, field in section.model_fields.items()]


def _types(annotation: Any) -> list[type]:
    if isinstance(annotation, type) and not hasattr(annotation, "__args__"):
        return [annotation]
    return [found for argument in getattr(annotation, "__args__", ()) for found in _types(argument)]
