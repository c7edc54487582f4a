"""A pod's volumes as folders of this machine, and what a container's environment is made of."""

from __future__ import annotations

import base64
import os
import re
import shutil
import subprocess
from pathlib import Path

from cluster.config import Image
from cluster.objects import Object, name_of, namespace_of, uid_of
from cluster.quantities import quantity
from cluster.sandbox import Mount
from cluster.store import Store

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_REFERENCE = re.compile(r"\$\$|\$\(([^()]+)\)")


class MissingError(Exception):
    """Something the pod refers to is not there, or not there yet."""


def prepare(store: Store, pod: Object, folder: Path) -> dict[str, Mount]:
    """
    Make the pod's volumes; each by its name, for a container to mount.

    :raises MissingError: a secret, a config map or a path of the machine is not there
    """
    made: dict[str, Mount] = {}
    for volume in pod["spec"].get("volumes", []):
        name, place = volume["name"], folder / volume["name"]
        try:
            if "hostPath" in volume:
                made[name] = Mount(_host_path(volume["hostPath"]), "")
                continue
            if "emptyDir" in volume:
                _empty(volume["emptyDir"], place)
            else:
                _write(store, pod, volume, place)
        except MissingError as error:
            raise MissingError(f'MountVolume.SetUp failed for volume "{name}" : {error}') from error
        made[name] = Mount(str(place), "", read_only="emptyDir" not in volume)
    return made


def environment(store: Store, pod: Object, container: Object, image: Image, own: dict[str, str]) -> dict[str, str]:
    """
    A container's environment: the image's, the cluster's own, and the container's on top.

    :raises MissingError: a secret, a config map or a key is not there
    """
    path = ":".join([*image.path, PATH])
    result = {"PATH": path, "HOME": "/root", **image.env, **own}
    for source in container.get("envFrom", []):
        kind = "secretRef" if "secretRef" in source else "configMapRef"
        values = _values(store, pod, "secrets" if kind == "secretRef" else "configmaps", source[kind])
        prefix = source.get("prefix", "")
        result |= {prefix + key: value.decode() for key, value in (values or {}).items()}
    for variable in container.get("env", []):
        value = _value(store, pod, variable, result)
        if value is not None:
            result[variable["name"]] = value
    return result


def expand(text: str, values: dict[str, str]) -> str:
    """``$(NAME)`` with its value, where there is one; ``$$`` is a dollar sign."""
    return _REFERENCE.sub(
        lambda match: "$" if match[0] == "$$" else values.get(match[1], match[0]),
        text,
    )


def field_of(pod: Object, path: str) -> str:
    """What the downward API gives for a field of the pod."""
    if match := re.fullmatch(r"metadata\.(labels|annotations)\['([^']+)'\]", path):
        return str(pod["metadata"].get(match[1], {}).get(match[2], ""))
    if path in ("metadata.labels", "metadata.annotations"):
        values = pod["metadata"].get(path.partition(".")[2], {})
        return "\n".join(f'{key}="{value}"' for key, value in sorted(values.items()))
    part, _, name = path.partition(".")
    lists = {"podIPs": "podIP", "hostIPs": "hostIP"}
    return str(pod[part].get(lists.get(name, name), ""))


def _value(store: Store, pod: Object, variable: Object, known: dict[str, str]) -> str | None:
    source = variable.get("valueFrom")
    if source is None:
        return expand(variable.get("value", ""), known)
    if "fieldRef" in source:
        return field_of(pod, source["fieldRef"]["fieldPath"])
    secret = "secretKeyRef" in source
    reference = source["secretKeyRef" if secret else "configMapKeyRef"]
    values = _values(store, pod, "secrets" if secret else "configmaps", reference)
    if values is None or reference["key"] not in values:
        if reference.get("optional"):
            return None
        kind = "Secret" if secret else "ConfigMap"
        raise MissingError(f"couldn't find key {reference['key']} in {kind} {namespace_of(pod)}/{reference['name']}")
    return values[reference["key"]].decode()


def _values(store: Store, pod: Object, plural: str, reference: Object) -> dict[str, bytes] | None:
    name = reference.get("name") or reference.get("secretName")
    found = store.find(plural, namespace_of(pod), str(name))
    if found is None:
        if reference.get("optional"):
            return None
        raise MissingError(f'{plural.removesuffix("s")} "{name}" not found')
    values = found.get("data", {})
    if plural == "secrets":
        return {key: base64.b64decode(text) for key, text in values.items()}
    binary = {key: base64.b64decode(text) for key, text in found.get("binaryData", {}).items()}
    return {key: text.encode() for key, text in values.items()} | binary


def _write(store: Store, pod: Object, volume: Object, place: Path) -> None:
    place.mkdir(parents=True, exist_ok=True)
    if "downwardAPI" in volume:
        for item in volume["downwardAPI"].get("items", []):
            if "fieldRef" not in item:
                raise MissingError("the stand-in cluster does not support resourceFieldRef")
            _write_file(place / item["path"], field_of(pod, item["fieldRef"]["fieldPath"]).encode(), 0o644)
        return
    secret = "secret" in volume
    source = volume["secret" if secret else "configMap"]
    values = _values(store, pod, "secrets" if secret else "configmaps", source)
    if values is None:
        return
    items = source.get("items") or [{"key": key, "path": key} for key in values]
    for item in items:
        if item["key"] not in values:
            if source.get("optional"):
                continue
            raise MissingError(f"references non-existent secret key: {item['key']}")
        _write_file(place / item["path"], values[item["key"]], item.get("mode", source["defaultMode"]))


def _write_file(file: Path, content: bytes, mode: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    file.chmod(mode)


def _empty(source: Object, place: Path) -> None:
    if place.exists():
        return
    place.mkdir(parents=True)
    place.chmod(0o777)
    if source.get("medium") == "Memory":
        options = "mode=1777"
        if "sizeLimit" in source:
            options += f",size={int(quantity(source['sizeLimit']))}"
        # In the cluster's own mount namespace: it is gone with the cluster's process.
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], check=True)


def _host_path(source: Object) -> str:
    path, kind = Path(source["path"]), source.get("type", "")
    folder = kind in ("Directory", "DirectoryOrCreate")
    if not path.exists():
        raise MissingError(f"hostPath type check failed: {path} does not exist, and the stand-in cluster makes nothing")
    if kind and path.is_dir() != folder:
        raise MissingError(f"hostPath type check failed: {path} is not a {'directory' if folder else 'file'}")
    return str(path)


def hosts_text(pod: Object, address: str, pods: list[Object], services: list[Object]) -> str:
    """A pod's /etc/hosts: itself, and in place of DNS the pods that headless Services publish."""
    hostname = hostname_of(pod)
    lines = ["127.0.0.1\tlocalhost", "::1\tlocalhost ip6-localhost ip6-loopback"]
    subdomain = pod["spec"].get("subdomain")
    full = f"{hostname}.{subdomain}.{namespace_of(pod)}.svc.cluster.local\t" if subdomain else ""
    lines.append(f"{address}\t{full}{hostname}")
    for alias in pod["spec"].get("hostAliases", []):
        lines.append("\t".join([alias["ip"], *alias.get("hostnames", [])]))
    for service in services:
        near = namespace_of(service) == namespace_of(pod)
        for other in pods:
            if names := _published(service, other, near):
                lines.append("\t".join([other["status"]["podIP"], *names]))
    return "\n".join(lines) + "\n"


def hostname_of(pod: Object) -> str:
    """What the pod's containers are called."""
    return str(pod["spec"].get("hostname") or name_of(pod)[:63])


def _published(service: Object, pod: Object, near: bool) -> list[str]:
    status, spec = pod.get("status", {}), service["spec"]
    labels = pod["metadata"].get("labels", {})
    ready = any(each["type"] == "Ready" and each["status"] == "True" for each in status.get("conditions", []))
    if (
        namespace_of(service) != namespace_of(pod)
        or not status.get("podIP")
        or status.get("phase") in ("Succeeded", "Failed")
        or any(labels.get(key) != value for key, value in spec["selector"].items())
        or not (spec.get("publishNotReadyAddresses") or (ready and "deletionTimestamp" not in pod["metadata"]))
    ):
        return []
    names = [name_of(service)]
    if pod["spec"].get("subdomain") == name_of(service) and pod["spec"].get("hostname"):
        names.insert(0, f"{pod['spec']['hostname']}.{name_of(service)}")
    space = namespace_of(service)
    ends = [f".{space}", f".{space}.svc", f".{space}.svc.cluster.local"]
    return [name + end for name in names for end in ([""] if near else []) + ends]


def folder_of(root: Path, pod: Object) -> Path:
    """Where a pod's files are kept."""
    return root / "pods" / uid_of(pod)


def discard(folder: Path) -> None:
    """Remove a pod's files, its memory volumes among them."""
    for place in (folder / "volumes").glob("*"):
        if os.path.ismount(place):
            subprocess.run(["umount", "--lazy", str(place)], check=True)
    shutil.rmtree(folder, ignore_errors=True)
