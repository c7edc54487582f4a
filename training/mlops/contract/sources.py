"""The grammar of ``ingest.sources``: a section per kind of source."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    ValidationInfo,
    field_validator,
    model_validator,
)

from mlops.contract.extensions import ExtensionPoint
from mlops.contract.section import EXTENSION_PATTERN, Digest, Section, SpecError, known_time_zone

ColumnType = Literal[
    "string", "boolean", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float32", "float64", "date", "datetime",
]  # fmt: skip
"""Type of a column. ``date`` is read from ISO 8601, ``datetime`` from ISO 8601 with an offset, or in the source's
``time_zone``; it is an instant."""


class SourceSection(Section):
    """One table to read, and which of its records count as of the interval's end."""

    event_time: str | None = None
    """Column with the instant to which a row belongs. Rows at or after the interval's end are never read.
    None for tables without history."""
    created_time: str | None = None
    """Column with the instant at which a record was written. Records written at or after the interval's end are never
    read, whatever their event time."""
    as_of: str | None = None
    """Column that is added with the last instant of the interval, for a table that says what is there and not since
    when; ``ingest.event_time`` may name it."""
    time_zone: str | None = None
    """IANA zone of dates, which begin at midnight (where the clock skips it, with the day's first instant), and of
    times without an offset, for this source's instants and its columns of type datetime; and of the day that an instant
    becomes as a column of type date. An hour that the clock shows twice is its first. None: such times are refused."""
    epoch: Literal["s", "ms", "us", "ns"] | None = None
    """What the instants count since 1970 UTC, where they are numbers. None: numbers are refused."""
    key: list[str] = Field(default=[])
    """Columns that name a thing; in CSV they are text, unless ``types`` says otherwise. Of several records of one thing
    the one written last counts, as of the interval's end; empty: every record counts."""
    history_days: int | None = Field(default=None, ge=0)
    """Rows older than this many days before the window are not read; None: all are."""
    types: dict[str, ColumnType] = Field(default={})
    """Types of columns that cannot be told from their values, or must be others."""

    @field_validator("time_zone")
    @classmethod
    def _known_zone(cls, value: str | None) -> str | None:
        return value if value is None else known_time_zone(value)

    @field_validator("key")
    @classmethod
    def _latest_by_created_time(cls, value: list[str], info: ValidationInfo) -> list[str]:
        if value and not info.data.get("created_time"):
            raise ValueError("given with created_time, which says which record of a key is the last")
        return value

    @field_validator("types")
    @classmethod
    def _instants_stay_instants(cls, value: dict[str, ColumnType], info: ValidationInfo) -> dict[str, ColumnType]:
        for setting in ("event_time", "created_time"):
            column = info.data.get(setting)
            if column is not None and value.get(column, "datetime") != "datetime":
                raise ValueError(f"without {column!r}, which {setting} names: it is a datetime")
        return value

    @field_validator("history_days")
    @classmethod
    def _history_by_event_time(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value is not None and not info.data.get("event_time"):
            raise ValueError("given with event_time, which says how old a row is")
        return value


class FileSource(SourceSection):
    """
    Files, on a disk or in an object store. The format follows from the name: .parquet; .csv or .jsonl, either of them
    also as .gz, .zip or .zst.
    """

    kind: Literal["files"] = "files"
    path: str
    """File or glob: relative to the project folder, absolute, or ``s3://bucket/...``."""
    null_values: list[str] = Field(default=["NA"])
    """Strings that mean null in CSV files."""
    separator: str = Field(default=",", min_length=1, max_length=1)
    """Between the fields of CSV files: ``;``, or a tab, ``"\\t"``."""
    decimal: Literal[".", ","] = "."
    """Before the fraction of a number in CSV files. With ``,`` points stand between thousands: ``1.234,5``. Where ``,``
    separates fields, too, such numbers are in quotes."""


class WholeFilesSource(SourceSection):
    """
    Files of which each is a row, with the columns ``path``, one of its content, and ``as_of``: the last instant of the
    interval, for a folder says what is there and not since when. A file's own time would be that of the copy.
    """

    path: str
    """File or glob: relative to the project folder, absolute, or ``s3://bucket/...``. A row's ``path`` is that below
    the folder which the pattern begins with."""
    sha256: Digest | None = None
    """Digest of all paths and contents, of files on a disk; ingest refuses others, and says theirs."""
    event_time: str | None = "as_of"


class TextSource(WholeFilesSource):
    """Text files in UTF-8, each a row with its content as ``text``."""

    kind: Literal["text"]


class BytesSource(WholeFilesSource):
    """Files of any kind, such as images, each a row with its content as ``bytes``."""

    kind: Literal["bytes"]


class SqlSource(SourceSection):
    """The rows of a query, all from one state of the database: PostgreSQL or SQLite."""

    kind: Literal["sql"]
    connection: str
    """Airflow connection of type ``postgres`` or ``sqlite``."""
    query: str
    """A SELECT."""
    range_column: str | None = None
    """Number, date or instant by whose ranges PostgreSQL is read in parallel; None: in one go."""
    num_ranges: int = Field(default=4, ge=1, le=64)
    """Connections at once."""


class DeltaSource(SourceSection):
    """A Delta table at one version."""

    kind: Literal["delta"]
    path: str
    """Folder of the table, relative to the project folder, or ``s3://bucket/...``."""
    version: int | None = Field(default=None, ge=0)
    """None: the newest that was committed before the interval's end."""


class IcebergSource(SourceSection):
    """An Iceberg table at one snapshot."""

    kind: Literal["iceberg"]
    table: str
    """``namespace.table``"""
    catalog: dict[str, str] = Field(default={})
    """PyIceberg's catalog properties and ``name``, e.g. ``{name: prod, type: rest, uri: https://...}``; secrets belong
    into the connection."""
    connection: str | None = None
    """Airflow connection whose extra holds further catalog properties."""
    snapshot_id: int | None = None
    """None: the table's current one at the interval's end."""


class RedisSource(SourceSection):
    """The entries of a Redis stream up to the interval's end, one row each, a column for each field."""

    kind: Literal["redis"]
    connection: str
    """Airflow connection of type ``redis``."""
    stream: str
    """Key of the stream."""
    columns: dict[str, str] = Field(default={})
    """Column -> field of the entries; empty: every field is a column of its name."""
    event_time: str | None = "stream_time"
    """By default the instant in an entry's id, which the row has as ``stream_time``, beside ``stream_id``."""


class KafkaSource(SourceSection):
    """The messages of a Kafka topic up to the interval's end: values are JSON objects, one row each."""

    kind: Literal["kafka"]
    connection: str
    """Airflow connection of type ``kafka``: its extra holds librdkafka's settings."""
    topic: str
    event_time: str | None = "kafka_timestamp"
    """By default the message's timestamp, which the row has as ``kafka_timestamp``, beside ``kafka_partition`` and
    ``kafka_offset``."""


@dataclass(frozen=True, kw_only=True)
class SourceSpec:
    """
    A kind of source, as far as it is known without the libraries that read it.

    An entry point of the group ``mlops.sources``, or an import path in a recipe, leads to one.
    """

    section: type[SourceSection]
    """Its settings beside ``kind``, a subclass of :class:`SourceSection`."""
    reader: str | Callable[..., Any]
    """``reader(name=, home=, records=, settings=) -> Source``, such as a subclass of :class:`mlops.SourceReader`; or
    its import path in the training runtime."""


_OURS: Final = "mlops.data.sources"
FILES = SourceSpec(section=FileSource, reader=f"{_OURS}.files:Files")
TEXT = SourceSpec(section=TextSource, reader=f"{_OURS}.whole_files:WholeFiles")
BYTES = SourceSpec(section=BytesSource, reader=f"{_OURS}.whole_files:WholeFiles")
SQL = SourceSpec(section=SqlSource, reader=f"{_OURS}.sql:sql_query")
DELTA = SourceSpec(section=DeltaSource, reader=f"{_OURS}.lakehouse:Delta")
ICEBERG = SourceSpec(section=IcebergSource, reader=f"{_OURS}.lakehouse:Iceberg")
REDIS = SourceSpec(section=RedisSource, reader=f"{_OURS}.redis_stream:RedisStream")
KAFKA = SourceSpec(section=KafkaSource, reader=f"{_OURS}.kafka_topic:KafkaTopic")

SOURCES: Final = ExtensionPoint(
    kind="kind",
    group="mlops.sources",
    builtin={
        "files": "mlops.contract.sources:FILES",
        "text": "mlops.contract.sources:TEXT",
        "bytes": "mlops.contract.sources:BYTES",
        "sql": "mlops.contract.sources:SQL",
        "delta": "mlops.contract.sources:DELTA",
        "iceberg": "mlops.contract.sources:ICEBERG",
        "redis": "mlops.contract.sources:REDIS",
        "kafka": "mlops.contract.sources:KAFKA",
    },
    attributes=("section", "reader"),
)


class NamedSource(SourceSection):
    """A source of an installed package, or of the recipe, with the settings of its own kind."""

    model_config = ConfigDict(extra="allow")

    kind: Annotated[str, StringConstraints(pattern=EXTENSION_PATTERN), AfterValidator(SOURCES.check_known)]
    """Name of its entry point, or ``package.module:NAME``."""

    @model_validator(mode="before")
    @classmethod
    def _settings_of_the_kind(cls, value: Any) -> Any:
        if not isinstance(value, Mapping) or not isinstance(kind := value.get("kind"), str):
            return value
        try:
            SOURCES.import_path(kind)
        except SpecError:
            return value  # the check of the kind says so
        settings = {key: each for key, each in value.items() if key != "kind"}
        return {"kind": kind, **SOURCES.checked_settings(kind, settings)}


def _kind_of_source(value: object) -> str | None:
    if isinstance(value, SourceSection):
        return f"({type(value).__name__})"
    kind = value.get("kind", "files" if "path" in value else None) if isinstance(value, Mapping) else None
    if not isinstance(kind, str):
        return None
    section = SOURCES.load(kind).section if kind in SOURCES.builtin else NamedSource
    return f"({section.__name__})"


AnySource = Annotated[
    Annotated[FileSource, Tag("(FileSource)")]
    | Annotated[TextSource, Tag("(TextSource)")]
    | Annotated[BytesSource, Tag("(BytesSource)")]
    | Annotated[SqlSource, Tag("(SqlSource)")]
    | Annotated[DeltaSource, Tag("(DeltaSource)")]
    | Annotated[IcebergSource, Tag("(IcebergSource)")]
    | Annotated[RedisSource, Tag("(RedisSource)")]
    | Annotated[KafkaSource, Tag("(KafkaSource)")]
    | Annotated[NamedSource, Tag("(NamedSource)")],
    Discriminator(
        _kind_of_source,
        custom_error_type="kind_of_source",
        custom_error_message="files (give their path), or have a kind: text, bytes, sql, delta, iceberg, redis, kafka, "
        "...",
    ),
]
