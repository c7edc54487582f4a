"""Ingest: read the sources as they were known at the end of the interval, transform, store a snapshot."""

from __future__ import annotations

import logging
from datetime import datetime

from mlops.contract.refs import DatasetRef
from mlops.contract.sections.ingest import Ingest
from mlops.data.snapshots.garbage import confirm_blobs
from mlops.data.snapshots.snapshot import write_snapshot
from mlops.data.snapshots.transform import Transform, explained, table_of
from mlops.data.sources import load_kind, read_source
from mlops.data.sources.source import unchanged
from mlops.data.sources.window import Window
from mlops.rehearsal.definitions import Definitions
from mlops.steps import StepContext

logger = logging.getLogger(__name__)


def run(context: StepContext) -> DatasetRef:
    config = context.section(Ingest)
    run, home = context.run, context.deployment.home
    end = datetime.fromisoformat(run.interval_end)
    window = Window.before(end, config.window, run.timezone, config.grain, begun=bool(config.undated))
    definitions = Definitions.of(context.input.sections, home)
    with definitions.beside():
        # All code before the first row: what is deployed during a long read must not make part of the snapshot.
        transform = Transform.of(config, home)
        for source in config.sources.values():
            load_kind(source.kind, home)
        context.check_code()
        sources = {
            name: read_source(name, source, home=home, scratch=context.scratch, window=window, engine=config.engine)
            for name, source in config.sources.items()
        }
        for name, table in sources.items():
            logger.info("source %s: %d rows known at %s", name, table.provenance["num_rows"], window.end.isoformat())
            for note in table.notes(name):
                logger.warning("%s", note)
        finishes = [table.finish for table in sources.values()]
        with unchanged(*finishes):
            rows = table_of(sources, config, transform, window)
    definitions.check(rows)
    with unchanged(*finishes), explained(config.transform, sources):
        manifest = write_snapshot(
            context.store,
            rows,
            name=run.pipeline,
            window=window,
            event_time=config.event_time,
            sources={name: table.provenance for name, table in sources.items()},
            split=config.split,
            calendar=config.calendar,
            creator={
                "dag_id": run.dag_id, "run_id": run.run_id, "task_id": run.task_id, "try_number": run.try_number,
            },
            engine=config.engine,
            scratch=context.scratch,
        )  # fmt: skip
    for finish in finishes:
        finish()
    artifact = context.publish("manifest.json", manifest.to_json())
    # After the manifest is written: only then does garbage collection spare the blobs it names.
    confirm_blobs(context.store, manifest)
    return manifest.ref(context.place, artifact)
