"""One pod on its node, from its volumes to its end."""

from __future__ import annotations

import asyncio
import signal
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from cluster import deletion, sandbox, volumes
from cluster.config import Configuration, Image
from cluster.events import Recorder
from cluster.memory import watch_memory
from cluster.objects import RESOURCES, TERMINAL, Object, being_deleted, copied, name_of, phase_of, timestamp, uid_of
from cluster.pod_status import Container, phase_now, restarts, status_of
from cluster.quantities import quantity
from cluster.store import Store

_CONFIG_RETRY_SECONDS = 1.0
_MOUNT_RETRY_SECONDS = 0.5
_LONGEST_BACKOFF_SECONDS = 300.0


class PodWorker:
    """Runs the pod's containers, tells its status, ends it when it is deleted or out of time."""

    def __init__(
        self, store: Store, events: Recorder, configuration: Configuration, pod: Object, folder: Path, address: str,
        api: tuple[str, int], carried: list[str], pull: Callable[[Object, str], Awaitable[None]],
    ) -> None:  # fmt: skip
        self._store, self._events, self._configuration = store, events, configuration
        self.pod, self._folder, self.address = pod, folder, address
        self._api, self._carried, self._pull = api, carried, pull
        spec = pod["spec"]
        self.containers = [Container(each, init=True) for each in spec.get("initContainers", [])]
        self.containers += [Container(each, init=False) for each in spec["containers"]]
        self._kill_at: float | None = None
        self._told_to_end = asyncio.Event()
        self._hurried = asyncio.Event()
        self._failure: tuple[str, str] | None = None
        self._mounts: dict[str, sandbox.Mount] = {}
        self.done = False

    @property
    def hosts_file(self) -> Path:
        """What the containers see as /etc/hosts."""
        return self._folder / "hosts"

    def end(self, grace: float) -> None:
        """End the pod: SIGTERM now, SIGKILL after the grace; a later call can only shorten it."""
        kill_at = time.monotonic() + grace
        if self._kill_at is None or kill_at < self._kill_at:
            self._kill_at = kill_at
        self._told_to_end.set()
        self._hurried.set()

    def kill(self) -> None:
        """End every process at once."""
        for container in self.containers:
            if container.process is not None:
                container.process.signal(signal.SIGKILL)

    async def run(self) -> None:
        """Run the pod to its end."""
        (self._folder / "containers").mkdir(parents=True)
        for container in self.containers:
            container.wait("PodInitializing" if self.pod["spec"].get("initContainers") else "ContainerCreating")
        self._store.modify("pods", self.pod, self._arrive)
        work = asyncio.create_task(self._work())
        ended = asyncio.create_task(self._told_to_end.wait())
        limit = self.pod["spec"].get("activeDeadlineSeconds")
        try:
            await asyncio.wait({work, ended}, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
            if not work.done() and not ended.done():
                text = "Pod was active on the node longer than the specified deadline"
                self._failure = ("DeadlineExceeded", text)
                self._events.normal(self.pod, "DeadlineExceeded", text, "kubelet")
                self.end(self.pod["spec"]["terminationGracePeriodSeconds"])
            if not work.done():
                work.cancel()
                await asyncio.wait({work})
                await self._terminate()
            elif not work.cancelled() and (error := work.exception()) is not None:
                raise error
        finally:
            work.cancel()
            ended.cancel()
            self.kill()
        self.done = True
        self._finish()

    def _arrive(self, pod: Object) -> None:
        pod["status"] |= {"startTime": timestamp(), "hostIP": "127.0.0.1", "hostIPs": [{"ip": "127.0.0.1"}]}
        pod["status"] = status_of(pod, self.containers, "Pending")

    async def _work(self) -> None:
        while True:
            try:
                self._mounts = volumes.prepare(self._store, self.pod, self._folder / "volumes")
                break
            except volumes.MissingError as error:
                self._events.warning(self.pod, "FailedMount", str(error), "kubelet")
                await asyncio.sleep(_MOUNT_RETRY_SECONDS)
        self.hosts_file.write_text(volumes.hosts_text(self.pod, self.address, [], []))
        self._store.modify("pods", self.pod, self._address)
        sidecars: list[asyncio.Task[None]] = []
        try:
            for container in [each for each in self.containers if each.init]:
                if container.sidecar:
                    sidecars.append(asyncio.create_task(self._keep(container, "Always")))
                    while not container.run_id:
                        await asyncio.sleep(0.02)
                    continue
                await self._keep(container, "OnFailure" if self._policy != "Never" else "Never")
                if container.exit_code != 0:
                    return
            async with asyncio.TaskGroup() as group:
                for container in [each for each in self.containers if not each.init]:
                    if "waiting" in container.state:
                        container.wait("ContainerCreating")
                    group.create_task(self._keep(container, self._policy))
            if sidecars:
                self.end(self.pod["spec"]["terminationGracePeriodSeconds"])
                for task in sidecars:
                    task.cancel()
                await self._terminate()
        finally:
            for task in sidecars:
                task.cancel()

    @property
    def _policy(self) -> str:
        return str(self.pod["spec"]["restartPolicy"])

    def _address(self, pod: Object) -> None:
        pod["status"] |= {"podIP": self.address, "podIPs": [{"ip": self.address}]}

    async def _keep(self, container: Container, policy: str) -> None:
        """Run a container, again and again where its policy says so."""
        while True:
            image = await self._image(container)
            await self._run_once(container, image)
            if not restarts(policy, container.exit_code or 0):
                self._tell()
                return
            delay = (
                self._configuration.crash_backoff_seconds * 2 ** (container.restarts - 1) if container.restarts else 0
            )
            delay = min(delay, _LONGEST_BACKOFF_SECONDS)
            if delay:
                terminated = container.state
                where = (
                    f"{container.name} pod={name_of(self.pod)}_{self.pod['metadata']['namespace']}({uid_of(self.pod)})"
                )
                text = f"back-off {delay:g}s restarting failed container={where}"
                container.last_state = terminated
                container.wait("CrashLoopBackOff", text)
                self._tell()
                self._events.warning(self.pod, "BackOff", f"Back-off restarting failed container {where}", "kubelet")
                await asyncio.sleep(delay)
            else:
                container.last_state = container.state
            container.restarts += 1

    async def _image(self, container: Container) -> Image:
        """Pull the image, until it can be pulled."""
        name, delay = container.spec["image"], self._configuration.pull_backoff_seconds
        field = self._field(container)
        while True:
            image = self._configuration.images.get(name)
            if image is not None:
                await self._pull(self.pod, name)
                return image
            reference = name if ":" in name.rpartition("/")[2] else f"{name}:latest"
            if container.spec["imagePullPolicy"] == "Never":
                container.wait(
                    "ErrImageNeverPull", f'Container image "{name}" is not present with pull policy of Never'
                )
                self._events.warning(
                    self.pod, "ErrImageNeverPull", container.state["waiting"]["message"], "kubelet", field
                )
                self._tell()
                await asyncio.sleep(delay)
                continue
            why = f'failed to resolve reference "{reference}": {reference}: not found'
            text = f'rpc error: code = NotFound desc = failed to pull and unpack image "{reference}": {why}'
            self._events.normal(self.pod, "Pulling", f'Pulling image "{name}"', "kubelet", field)
            self._events.warning(self.pod, "Failed", f'Failed to pull image "{name}": {text}', "kubelet", field)
            self._events.warning(self.pod, "Failed", "Error: ErrImagePull", "kubelet", field)
            container.wait("ErrImagePull", text)
            self._tell()
            await asyncio.sleep(min(0.3, delay))
            container.wait("ImagePullBackOff", f'Back-off pulling image "{name}": ErrImagePull: {text}')
            self._events.normal(self.pod, "BackOff", f'Back-off pulling image "{name}"', "kubelet", field)
            self._events.warning(self.pod, "Failed", "Error: ImagePullBackOff", "kubelet", field)
            self._tell()
            await asyncio.sleep(delay)
            delay = min(2 * delay, _LONGEST_BACKOFF_SECONDS)

    async def _run_once(self, container: Container, image: Image) -> None:
        field = self._field(container)
        while True:
            try:
                settings = self._settings(container, image)
                break
            except volumes.MissingError as error:
                container.wait("CreateContainerConfigError", str(error))
                self._events.warning(self.pod, "Failed", f"Error: {error}", "kubelet", field)
                self._tell()
                await asyncio.sleep(_CONFIG_RETRY_SECONDS)
        self._events.normal(self.pod, "Created", f"Created container: {container.name}", "kubelet", field)
        container.previous_log = container.log.file if container.log is not None else None
        base = self._folder / "containers" / f"{container.name}-{container.restarts}"
        container.log = sandbox.Log(base.with_suffix(".log"))
        container.run_id, container.out_of_memory = uuid.uuid4().hex * 2, False
        try:
            # Shielded: a container that is being started as the pod ends is still found, and ended with it.
            starting = asyncio.ensure_future(self._start(container, settings, base))
            await asyncio.shield(starting)
        except sandbox.StartError as error:
            text = (
                "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create "
            )
            text += f"failed: unable to start container process: {error}"
            container.log.end()
            container.state = {"terminated": _ending(container, "StartError", 128, timestamp(0)) | {"message": text}}
            self._events.warning(self.pod, "Failed", f"Error: {text}", "kubelet", field)
            self._tell()
            return
        except asyncio.CancelledError:
            await asyncio.wait({starting})
            raise
        assert container.process is not None
        await asyncio.shield(container.process.exited)
        self._record_exit(container)

    async def _start(self, container: Container, settings: sandbox.Settings, base: Path) -> None:
        assert container.log is not None
        container.process = await sandbox.start(settings, container.log, base.with_suffix(".json"))
        container.state = {"running": {"startedAt": timestamp()}}
        self._tell()
        self._events.normal(
            self.pod, "Started", f"Started container {container.name}", "kubelet", self._field(container)
        )
        limit = container.spec["resources"].get("limits", {}).get("memory")
        if limit is not None:
            watch_memory(container, int(quantity(limit)))

    def _record_exit(self, container: Container) -> None:
        if not container.running or container.process is None:
            return
        code = container.process.exited.result()
        started = container.state["running"]["startedAt"]
        reason = "OOMKilled" if container.out_of_memory else "Error" if code else "Completed"
        ending = _ending(container, reason, code, started)
        if message := self._message(container, code):
            ending["message"] = message
        container.state = {"terminated": ending}
        container.process = None
        # What of the container is told next depends on its restart policy: `_keep` and `_terminate` tell it.

    def _message(self, container: Container, code: int) -> str:
        assert container.log is not None
        file = self._folder / "containers" / f"{container.name}-{container.restarts}.message"
        text = file.read_bytes()[-4096:].decode(errors="replace") if file.exists() else ""
        if not text and code and container.spec["terminationMessagePolicy"] == "FallbackToLogsOnError":
            lines = container.log.file.read_bytes().splitlines(keepends=True)[-80:]
            text = b"".join(line.partition(b" ")[2] for line in lines)[-2048:].decode(errors="replace")
        return text

    def _settings(self, container: Container, image: Image) -> sandbox.Settings:
        pod, spec = self._store.current("pods", self.pod) or self.pod, container.spec
        security = {**pod["spec"].get("securityContext", {}), **spec.get("securityContext", {})}
        if security.get("runAsNonRoot") and security.get("runAsUser", image.user) == 0:
            raise volumes.MissingError("container has runAsNonRoot and image will run as root")
        base = self._folder / "containers" / f"{container.name}-{container.restarts}"
        message = base.with_suffix(".message")
        message.touch()
        own = {"HOSTNAME": volumes.hostname_of(pod)}
        own |= {"KUBERNETES_SERVICE_HOST": self._api[0], "KUBERNETES_SERVICE_PORT": str(self._api[1])}
        env = volumes.environment(self._store, pod, spec, image, own)
        command = spec.get("command") or list(image.entrypoint)
        words = [volumes.expand(word, env) for word in [*command, *spec.get("args", [])]]
        if not words:
            raise volumes.MissingError("no command specified")
        mounts = [sandbox.Mount(folder, folder, read_only=True) for folder in image.folders]
        mounts.append(sandbox.Mount(str(self.hosts_file), "/etc/hosts"))
        mounts.append(sandbox.Mount(str(message), spec["terminationMessagePath"]))
        for mount in spec.get("volumeMounts", []):
            volume = self._mounts[mount["name"]]
            read_only = volume.read_only or mount.get("readOnly", False)
            mounts.append(replace(volume, target=mount["mountPath"], read_only=read_only))
        gpu = int(spec["resources"].get("limits", {}).get("nvidia.com/gpu", 0)) > 0
        return sandbox.Settings(
            root=str(base.with_suffix(".root")), hostname=volumes.hostname_of(pod), command=words, env=env,
            workdir=spec.get("workingDir") or image.workdir, mounts=mounts,
            read_only_root=bool(security.get("readOnlyRootFilesystem")), gpu=gpu, carried=self._carried,
        )  # fmt: skip

    async def _terminate(self) -> None:
        """SIGTERM to each first process, SIGKILL when the grace is over."""
        running = [container for container in self.containers if container.process is not None]
        for container in running:
            text = f"Stopping container {container.name}"
            self._events.normal(self.pod, "Killing", text, "kubelet", self._field(container))
            assert container.process is not None
            container.process.signal(signal.SIGTERM)
        exits = {container.process.exited for container in running if container.process is not None}
        while exits:
            self._hurried.clear()
            hurry = asyncio.create_task(self._hurried.wait())
            left = max(0.0, (self._kill_at or 0.0) - time.monotonic())
            done, _ = await asyncio.wait({*exits, hurry}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            hurry.cancel()
            exits -= done
            if time.monotonic() >= (self._kill_at or 0.0):
                self.kill()
                if exits:
                    await asyncio.wait(exits)
                break
        for container in running:
            self._record_exit(container)
        for container in self.containers:
            if "waiting" in container.state and not (container.init and container.exit_code == 0):
                ending = _ending(container, "ContainerStatusUnknown", 137, "")
                text = "The container could not be located when the pod was terminated"
                container.state = {"terminated": ending | {"message": text}}

    def _finish(self) -> None:
        """The last status; then a deleted pod goes."""
        codes = [container.exit_code for container in self.containers if not container.init]
        failed = self._failure is not None or any(code is None or code != 0 for code in codes)
        self._tell("Failed" if failed else "Succeeded")
        found = self._store.current("pods", self.pod)
        if found is not None and being_deleted(found):
            self.remove(found)

    def remove(self, pod: Object) -> None:
        """Remove the deleted pod from the API, unless a finalizer holds it."""
        deletion.finish(self._store, RESOURCES["pods"], pod)

    def _tell(self, phase: str | None = None) -> None:
        found = self._store.current("pods", self.pod)
        if found is None or phase_of(found) in TERMINAL:
            return
        new = copied(found)
        now = phase or phase_now(found, self.containers)
        if phase is None and now in TERMINAL:
            return  # `_finish` tells it, once nothing runs any more
        new["status"] = status_of(found, self.containers, now)
        if phase is not None and self._failure is not None:
            new["status"]["reason"], new["status"]["message"] = self._failure
        self._store.replace("pods", new)

    @staticmethod
    def _field(container: Container) -> str:
        return f"spec.{'initContainers' if container.init else 'containers'}{{{container.name}}}"


def _ending(container: Container, reason: str, code: int, started: str) -> Object:
    ending: Object = {"exitCode": code, "reason": reason, "finishedAt": timestamp()}
    ending["startedAt"] = started or timestamp()
    if container.run_id:
        ending["containerID"] = f"containerd://{container.run_id}"
    return ending
