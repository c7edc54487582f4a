"""Where this deployment keeps things: the ``[mlops]`` section of Airflow's configuration, read in one function."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from airflow.sdk.configuration import conf

SECTION = "mlops"


@dataclass(frozen=True, kw_only=True, slots=True)
class Deployment:
    """
    Each field is an option of ``[mlops]``, or the variable ``AIRFLOW__MLOPS__<OPTION>``.

    The defaults fit a checkout of the project, where ``plugins/`` is Airflow's plugins folder.
    """

    home: Path
    """Folder that holds ``include/`` and ``training/``."""
    store: str
    """URI of the object store's root: ``file:///folder`` or ``s3://bucket/prefix``."""
    tracking_uri: str
    """MLflow server, as the steps reach it."""
    tracking_url: str
    """MLflow server, as people's browsers reach it."""
    pythons: Mapping[str, Path]
    """Interpreter of each runtime, for the process launcher."""

    @classmethod
    def load(cls) -> Deployment:
        checkout = Path(__file__).resolve().parents[2]
        home = Path(conf.get(SECTION, "home", fallback=str(checkout))).resolve()
        tracking_uri = conf.get(SECTION, "tracking_uri", fallback="http://127.0.0.1:5000")
        return cls(
            home=home,
            store=conf.get(SECTION, "store", fallback=f"file://{home}/.local/store"),
            tracking_uri=tracking_uri,
            tracking_url=conf.get(SECTION, "tracking_url", fallback=tracking_uri).rstrip("/"),
            pythons={
                runtime: Path(
                    conf.get(SECTION, f"{runtime}_python", fallback=str(home / f".venv/{runtime}/bin/python"))
                )
                for runtime in ("training", "validation")
            },
        )
