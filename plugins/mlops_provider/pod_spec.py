"""What a step's pods look like: the grammar of a pipeline's ``pods`` and of the platform's default file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args

import yaml
from pydantic import AfterValidator, Field, model_validator

from mlops.contract.section import AbsolutePath, Json, ObjectName, Quantity, Section, SpecError, check_section

_UNITS: Final[Mapping[str, float]] = {
    "m": 1e-3, **{unit: 1000.0**power for power, unit in enumerate(("", "k", "M", "G", "T", "P"))},
    **{f"{unit}i": 1024.0**power for power, unit in enumerate("KMGTP", 1)},
}  # fmt: skip
_LEAST_BYTES: Final = 1 << 20


def _amount(quantity: str) -> float:
    number = quantity.rstrip("mkKMGTPi")
    return float(number) * _UNITS[quantity[len(number) :]]


def _some_cpus(quantity: str) -> str:
    if not _amount(quantity):
        raise ValueError("more than 0, such as 500m or 2")
    return quantity


def _with_unit(quantity: str) -> str:
    """No step fits into less: the unit was forgotten."""
    if _amount(quantity) < _LEAST_BYTES:
        raise ValueError(f"at least 1Mi, and {quantity} is in bytes: say the unit, such as 4Gi")
    return quantity


Cpus = Annotated[Quantity, AfterValidator(_some_cpus)]
Bytes = Annotated[Quantity, AfterValidator(_with_unit)]


class PodVolume(Section):
    """Something mounted into the container; exactly one of the four kinds."""

    mount_path: AbsolutePath
    claim: ObjectName | None = None
    """PersistentVolumeClaim."""
    secret: ObjectName | None = None
    config_map: ObjectName | None = None
    host_path: str | None = None
    """Folder of the node; clusters usually forbid it."""
    read_only: bool = True

    @model_validator(mode="after")
    def _one_kind(self) -> PodVolume:
        if sum(kind is not None for kind in (self.claim, self.secret, self.config_map, self.host_path)) != 1:
            raise ValueError("a volume of one kind: give one of claim, secret, config_map, host_path")
        return self


class Pods(Section):
    """
    Pods of a step. Each setting has its value from the first place that gives one: the step, the pipeline (``all``),
    the platform's default file, here. Mappings are merged, everything else replaces what a later place says.
    """

    image: str | None = None
    """Instead of the deployment's image of the step's runtime."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    image_pull_secrets: list[ObjectName] = []
    cpu: Cpus = "1"
    """CPUs that each pod asks for; it may use more where the node has them."""
    memory: Bytes = "2Gi"
    """Bytes that each pod asks for, and at which it is killed."""
    ephemeral_storage: Bytes | None = None
    gpus: int = Field(default=0, ge=0)
    """GPUs of each pod."""
    gpu_resource: str = "nvidia.com/gpu"
    gpu_type: str | None = None
    """Value of the node label ``nvidia.com/gpu.product``."""
    shared_memory: Bytes = "1Gi"
    """Size of ``/dev/shm``; counts as memory when used."""
    scratch: Bytes = "10Gi"
    """Size of ``/tmp``, the only other place where the container can write."""
    node_selector: dict[str, str] = {}
    tolerations: list[dict[str, Json]] = []
    """As in a pod's spec, e.g. for spot nodes."""
    affinity: dict[str, Json] = {}
    """As in a pod's spec."""
    service_account: ObjectName | None = None
    run_as_user: int = Field(default=50000, ge=1)
    """User id; the images have this one."""
    env: dict[str, str] = {}
    env_from_secrets: list[ObjectName] = []
    """Secrets whose entries become environment variables, such as the object store's keys."""
    env_from_config_maps: list[ObjectName] = []
    volumes: list[PodVolume] = []
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    priority_class: ObjectName | None = None
    queue: ObjectName | None = None
    """Kueue's LocalQueue: all pods are admitted together, when the team's quota has room."""
    queue_priority: ObjectName | None = None
    """Kueue's WorkloadPriorityClass."""
    grace_seconds: int = Field(default=120, ge=1)
    """From SIGTERM to SIGKILL; a checkpoint must fit."""
    start_timeout_seconds: float = Field(default=900, gt=0)
    """For all pods (of ``min:max`` nodes: min) to run, once they are admitted."""
    max_hours: float = Field(default=24 * 7, gt=0)
    """The cluster ends the step then, also where Airflow is gone. A shorter ``execution_timeout`` goes before."""
    keep_seconds: int = Field(default=24 * 3600, ge=60)
    """A finished Job that Airflow does not remove, because it is gone, stays so long."""
    max_pod_failures: int = Field(default=6, ge=0)
    """Pods of a gang that may die without saying why (out of memory, say) before the step is lost. Evicted and
    preempted ones do not count."""
    template: str | None = None
    """File with a pod's manifest, relative to the project folder, for all that has no setting here. Where both say
    something it goes before the settings; lists of named things are merged by name; the container is ``step``."""


ALL: Final = "all"
"""Key of the settings that hold for every step."""
Place = Literal["all", "ingest", "validate", "features", "tune", "train", "evaluate", "register", "promote", "predict"]


def of_step(places: Mapping[str, Mapping[str, Any]], step: str) -> dict[str, Any]:
    """What a mapping by step says of one."""
    return merged(places.get(ALL, {}), places.get(step, {}))


def platform_pods(file: Path | None, step: str) -> dict[str, Any]:
    """
    What the platform's default file says of a step.

    :raises SpecError: naming the file, and what is wrong with it
    """
    if file is None:
        return {}
    try:
        content = yaml.safe_load(file.read_text()) or {}
    except (OSError, yaml.YAMLError) as error:
        raise SpecError(f"[mlops] pod_defaults: {error}") from error
    if not isinstance(content, dict) or not all(isinstance(value, dict) for value in content.values()):
        raise SpecError(f"{file}: must hold a mapping of settings for 'all' or for a step")
    for place, settings in content.items():
        if place not in get_args(Place):
            raise SpecError(f"{file}: unknown key {place!r}; known keys are {', '.join(get_args(Place))}")
        check_section(Pods, settings, f"{file}: {place}")
    return of_step(content, step)


def merged(*places: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of several places, the last one going before the others. Mappings are merged."""
    result: dict[str, Any] = {}
    for place in places:
        for name, value in place.items():
            before = result.get(name)
            both = isinstance(before, Mapping) and isinstance(value, Mapping)
            result[name] = {**before, **value} if both else value  # type: ignore[dict-item]
    return result
