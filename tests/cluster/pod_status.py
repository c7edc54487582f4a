"""A pod's status, out of what its containers are doing. Pure: the worker writes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from cluster.objects import Object, copied, set_condition

if TYPE_CHECKING:
    from cluster.sandbox import Log, Process


@dataclass
class Container:
    """One of a pod's containers, as the kubelet knows it."""

    spec: Object
    init: bool
    state: Object = field(default_factory=dict)
    last_state: Object = field(default_factory=dict)
    restarts: int = 0
    run_id: str = ""
    process: Process | None = None
    log: Log | None = None
    previous_log: Path | None = None
    out_of_memory: bool = False

    @property
    def name(self) -> str:
        """The container's name."""
        return str(self.spec["name"])

    @property
    def sidecar(self) -> bool:
        """Whether it is an init container that goes on beside the others."""
        return self.init and self.spec.get("restartPolicy") == "Always"

    @property
    def running(self) -> bool:
        """Whether its process runs."""
        return "running" in self.state

    @property
    def exit_code(self) -> int | None:
        """How it ended, if it has."""
        return self.state["terminated"]["exitCode"] if "terminated" in self.state else None

    def wait(self, reason: str, message: str = "") -> None:
        """It waits for something."""
        self.state = {"waiting": {"reason": reason} | ({"message": message} if message else {})}

    def status(self) -> Object:
        """As ``containerStatuses`` has it."""
        status: Object = {"name": self.name, "image": self.spec["image"], "restartCount": self.restarts}
        status |= {"imageID": f"{self.spec['image']}@local" if self.run_id else "", "state": self.state}
        status |= {"lastState": self.last_state}
        done = self.init and not self.sidecar and self.exit_code == 0
        status["ready"] = done if self.init and not self.sidecar else self.running
        status["started"] = self.running
        if self.run_id:
            status["containerID"] = f"containerd://{self.run_id}"
        return status


def status_of(pod: Object, containers: Sequence[Container], phase: str) -> Object:
    """The pod's status while it is on its node."""
    status = copied(pod["status"])
    init = [container for container in containers if container.init]
    main = [container for container in containers if not container.init]
    status["phase"] = phase
    if init:
        status["initContainerStatuses"] = [container.status() for container in init]
    status["containerStatuses"] = [container.status() for container in main]
    unfinished = [each.name for each in init if not (each.exit_code == 0 or (each.sidecar and each.run_id))]
    unready = [each.name for each in [*main, *(each for each in init if each.sidecar)] if not each.running]
    set_condition(status, "PodReadyToStartContainers", "podIP" in status and phase not in ("Succeeded", "Failed"))
    if unfinished and phase != "Succeeded":
        text = f"containers with incomplete status: [{' '.join(unfinished)}]"
        set_condition(status, "Initialized", False, "ContainersNotInitialized", text)
    else:
        set_condition(status, "Initialized", True, "PodCompleted" if phase == "Succeeded" else "")
    for name in ("Ready", "ContainersReady"):
        if phase == "Succeeded":
            set_condition(status, name, False, "PodCompleted")
        elif phase == "Failed":
            set_condition(status, name, False, "PodFailed")
        elif unready:
            text = f"containers with unready status: [{' '.join(unready)}]"
            set_condition(status, name, False, "ContainersNotReady", text)
        else:
            set_condition(status, name, True)
    return status


def phase_now(pod: Object, containers: Sequence[Container]) -> str:
    """The phase of a pod that is not being ended."""
    init = [container for container in containers if container.init]
    main = [container for container in containers if not container.init]
    policy = pod["spec"]["restartPolicy"]
    for container in init:
        if not container.sidecar and container.exit_code is not None and container.exit_code != 0 and policy == "Never":
            return "Failed"
    if any(not container.run_id for container in main):
        return "Pending"
    codes = [container.exit_code for container in main]
    if all(code is not None for code in codes) and not any(restarts(policy, code or 0) for code in codes):
        return "Failed" if any(codes) else "Succeeded"
    return "Running"


def restarts(policy: str, code: int) -> bool:
    """Whether a container that ended so is started again."""
    return policy == "Always" or (policy == "OnFailure" and code != 0)
