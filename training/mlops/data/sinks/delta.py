"""A Delta table, partitioned by pipeline and period: each period is replaced by one commit."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import polars as pl
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from mlops.contract.sections.predict import DeltaOutput
from mlops.contract.step import BadConfigError
from mlops.data.sinks.sink import INTERVAL_END, PERIOD, PIPELINE, Origin, SinkError, with_origin


class Delta:
    tabular: ClassVar[bool] = True

    def __init__(self, settings: DeltaOutput, home: Path) -> None:
        self.place = settings.path if "://" in settings.path else str(home / settings.path)

    def put(self, period: str, data: bytes, origin: Origin) -> bool:
        rows = with_origin(data, period, origin).to_arrow(compat_level=pl.CompatLevel.oldest())
        try:
            table = self._table(rows.schema)
            if self._latest(table, period, origin.pipeline) > origin.interval_end.timestamp():
                return False
            # Of the version that was looked at: what another one has put there meanwhile is a conflict. Names and
            # periods have no quotes in them.
            write_deltalake(
                table,
                rows,
                mode="overwrite",
                predicate=f"{PIPELINE} = '{origin.pipeline}' AND {PERIOD} = '{period}'",
                schema_mode="merge",
            )
        except CommitFailedError as error:
            raise SinkError(f"predict.output: {self.place} was written by another one meanwhile: {error}") from error
        except (DeltaError, ValueError) as error:
            raise BadConfigError(
                f"predict.output: {self.place} cannot hold these predictions: {_first_line(error)}; give other columns "
                "a table of their own"
            ) from error
        except OSError as error:
            raise SinkError(f"predict.output: cannot write {self.place}: {_first_line(error)}") from error
        return True

    def _table(self, schema: pa.Schema) -> DeltaTable:
        """Return the table as it is now, made where there is none."""
        try:
            return DeltaTable(self.place)
        except TableNotFoundError:
            if "://" not in self.place:
                Path(self.place).mkdir(parents=True, exist_ok=True)
            DeltaTable.create(self.place, schema, mode="ignore", partition_by=[PIPELINE, PERIOD])
            return DeltaTable(self.place)

    def _latest(self, table: DeltaTable, period: str, pipeline: str) -> float:
        """Return the end of the latest interval that has put a period there, in seconds since 1970; 0 for none."""
        rows = pl.scan_delta(table).filter(pl.col(PIPELINE) == pipeline, pl.col(PERIOD) == period)
        found = rows.select(pl.col(INTERVAL_END).max()).collect().item()
        return 0.0 if found is None else float(found.timestamp())


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0]
