"""Where this deployment keeps things: the ``[mlops]`` section of Airflow's configuration, read in one function."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from airflow.sdk.configuration import conf

from mlops_provider.section import SpecError

SECTION = "mlops"
LAUNCHERS = ("process", "pod")
RUNTIMES = ("training", "validation")


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
    launcher: str = "process"
    """``process`` or ``pod``, for steps that do not say."""
    images: Mapping[str, str] = field(default_factory=dict)
    """Of each runtime, for the pod launcher."""
    kubernetes_connection: str | None = None
    """Airflow connection id; None: the cluster that Airflow runs in, else the user's kubeconfig."""
    kubernetes_namespace: str = "default"
    pod_defaults: Path | None = None
    """File with the platform's settings of pods, as a pipeline's ``pods``."""

    @classmethod
    def load(cls) -> Deployment:
        """:raises SpecError: naming the option whose value is none"""
        checkout = Path(__file__).resolve().parents[2]
        home = Path(conf.get(SECTION, "home", fallback=str(checkout))).resolve()
        defaults = conf.get(SECTION, "pod_defaults", fallback="") or None
        launcher = conf.get(SECTION, "launcher", fallback="process")
        if launcher not in LAUNCHERS:
            raise SpecError(f"[{SECTION}] launcher is {launcher!r}; it must be one of {', '.join(LAUNCHERS)}")
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
                for runtime in RUNTIMES
            },
            launcher=launcher,
            images={
                runtime: image for runtime in RUNTIMES if (image := conf.get(SECTION, f"{runtime}_image", fallback=""))
            },
            kubernetes_connection=conf.get(SECTION, "kubernetes_connection", fallback="") or None,
            kubernetes_namespace=conf.get(SECTION, "kubernetes_namespace", fallback="default"),
            pod_defaults=home / defaults if defaults else None,
        )
