"""What a pod's spec is completed with, what it may say, and what of it the stand-in cannot do."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from cluster import errors
from cluster.formats import Mistakes, annotation_keys, bad, label_name, labels
from cluster.objects import Object
from cluster.quantities import quantity

_UNSUPPORTED_POD = (
    *("dnsConfig", "ephemeralContainers", "hostIPC", "hostNetwork", "hostPID", "hostUsers", "hostnameOverride"),
    *("overhead", "readinessGates", "resourceClaims", "resources", "runtimeClassName", "setHostnameAsFQDN"),
    *("shareProcessNamespace", "topologySpreadConstraints"),
)
_UNSUPPORTED_CONTAINER = (
    *("lifecycle", "livenessProbe", "readinessProbe", "startupProbe", "resizePolicy", "restartPolicyRules"),
    *("stdin", "stdinOnce", "tty", "volumeDevices"),
)
_VOLUMES = ("secret", "configMap", "emptyDir", "hostPath", "downwardAPI")
_ENV_FIELDS = re.compile(
    r"metadata\.(name|namespace|uid|labels\['[^']+'\]|annotations\['[^']+'\])"
    r"|spec\.(nodeName|serviceAccountName)|status\.(podIPs?|hostIPs?)"
)
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")


def complete(spec: Object) -> None:
    """Fill in the defaults, in place."""
    for name, value in (
        ("restartPolicy", "Always"),
        ("terminationGracePeriodSeconds", 30),
        ("dnsPolicy", "ClusterFirst"),
        ("securityContext", {}),
        ("schedulerName", "default-scheduler"),
        ("serviceAccountName", "default"),
        ("enableServiceLinks", True),
        ("preemptionPolicy", "PreemptLowerPriority"),
        ("priority", 0),
    ):
        spec.setdefault(name, value)
    for container in containers_of(spec):
        container.setdefault("terminationMessagePath", "/dev/termination-log")
        container.setdefault("terminationMessagePolicy", "File")
        tag = str(container.get("image", "")).rpartition("/")[2].partition(":")[2]
        container.setdefault("imagePullPolicy", "IfNotPresent" if tag not in ("", "latest") else "Always")
        resources = container.setdefault("resources", {})
        if limits := resources.get("limits"):
            resources["requests"] = {**limits, **resources.get("requests", {})}
    for volume in spec.get("volumes", []):
        if not set(volume) - {"name"}:
            volume["emptyDir"] = {}
        for source in ("secret", "configMap", "downwardAPI"):
            if source in volume:
                volume[source].setdefault("defaultMode", 0o644)


def check(metadata: Object, spec: Object, field: str = "spec") -> Mistakes:
    """
    The mistakes in a pod or a pod template.

    :raises ApiError: it asks for something the stand-in cannot do
    """
    _refuse_unsupported(spec)
    at = field.removesuffix("spec") + "metadata"
    found = labels(f"{at}.labels", metadata.get("labels", {}))
    found += annotation_keys(f"{at}.annotations", metadata.get("annotations", {}))
    for name in ("hostname", "subdomain"):
        if name in spec:
            found += label_name(f"{field}.{name}", spec[name])
    if spec["restartPolicy"] not in ("Always", "OnFailure", "Never"):
        text = f'Unsupported value: "{spec["restartPolicy"]}": supported values: "Always", "OnFailure", "Never"'
        found.append((f"{field}.restartPolicy", text))
    for name, least in (("terminationGracePeriodSeconds", 0), ("activeDeadlineSeconds", 1)):
        if spec.get(name, least) < least:
            found.append((f"{field}.{name}", bad(spec[name], f"must be greater than or equal to {least}")))
    found += _tolerations(spec, f"{field}.tolerations")
    found += labels(f"{field}.nodeSelector", spec.get("nodeSelector", {}))
    volumes = {volume["name"] for volume in spec.get("volumes", [])}
    found += _unique(f"{field}.volumes", [volume["name"] for volume in spec.get("volumes", [])])
    for index, volume in enumerate(spec.get("volumes", [])):
        found += _volume(volume, f"{field}.volumes[{index}]")
    if not spec["containers"]:
        found.append((f"{field}.containers", "Required value"))
    found += _unique(f"{field}.containers", [container["name"] for container in containers_of(spec)])
    for group in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(group, [])):
            found += _container(container, volumes, f"{field}.{group}[{index}]")
            if group == "containers" and "restartPolicy" in container:
                where = f"{field}.{group}[{index}].restartPolicy"
                found.append((where, "Forbidden: may not be set for non-init containers"))
    return found


def containers_of(spec: Object) -> list[Object]:
    """The init containers and the containers."""
    return [*spec.get("initContainers", []), *spec.get("containers", [])]


def quality_of_service(spec: Object) -> str:
    """Guaranteed, Burstable or BestEffort."""
    resources = [container.get("resources", {}) for container in containers_of(spec)]
    if not any(each.get("requests") or each.get("limits") for each in resources):
        return "BestEffort"
    equal = all(
        {"cpu", "memory"} <= set(each.get("limits", {})) and each["limits"] == each.get("requests")
        for each in resources
    )
    return "Guaranteed" if equal else "Burstable"


def _refuse_unsupported(spec: Object) -> None:
    for name in _UNSUPPORTED_POD:
        if spec.get(name):
            raise errors.unsupported(f"spec.{name}")
    affinity = spec.get("affinity", {})
    if set(affinity) - {"nodeAffinity"}:
        raise errors.unsupported("pod affinity and anti-affinity")
    for container in containers_of(spec):
        for name in _UNSUPPORTED_CONTAINER:
            if container.get(name):
                raise errors.unsupported(f"containers[].{name}")
        for mount in container.get("volumeMounts", []):
            for name in ("subPath", "subPathExpr", "mountPropagation", "recursiveReadOnly"):
                if mount.get(name):
                    raise errors.unsupported(f"volumeMounts[].{name}")
    for volume in spec.get("volumes", []):
        for source in set(volume) - {"name", *_VOLUMES}:
            raise errors.unsupported(f"volumes[].{source}")


def _container(container: Object, volumes: set[str], field: str) -> Mistakes:
    found = label_name(f"{field}.name", container["name"])
    if not str(container.get("image", "")).strip():
        found.append((f"{field}.image", "Required value"))
    if (policy := container["imagePullPolicy"]) not in ("Always", "IfNotPresent", "Never"):
        found.append((f"{field}.imagePullPolicy", f'Unsupported value: "{policy}"'))
    if (policy := container["terminationMessagePolicy"]) not in ("File", "FallbackToLogsOnError"):
        found.append((f"{field}.terminationMessagePolicy", f'Unsupported value: "{policy}"'))
    for index, variable in enumerate(container.get("env", [])):
        found += _variable(variable, f"{field}.env[{index}]")
    for index, source in enumerate(container.get("envFrom", [])):
        if len(set(source) & {"secretRef", "configMapRef"}) != 1:
            found.append(
                (f"{field}.envFrom[{index}]", "Invalid value: must specify one of: `configMapRef` or `secretRef`")
            )
    paths = [mount["mountPath"] for mount in container.get("volumeMounts", [])]
    for index, mount in enumerate(container.get("volumeMounts", [])):
        at = f"{field}.volumeMounts[{index}]"
        if mount["name"] not in volumes:
            found.append((f"{at}.name", f'Not found: "{mount["name"]}"'))
        if not mount["mountPath"].startswith("/") or ":" in mount["mountPath"]:
            found.append((f"{at}.mountPath", bad(mount["mountPath"], "must be an absolute path without ':'")))
        if paths.count(mount["mountPath"]) > 1:
            found.append((f"{at}.mountPath", bad(mount["mountPath"], "must be unique")))
    return found + _resources(container["resources"], f"{field}.resources")


def _variable(variable: Object, field: str) -> Mistakes:
    name, source = variable["name"], variable.get("valueFrom")
    if not name or "=" in name or not name.isprintable() or not name.isascii():
        return [
            (f"{field}.name", bad(name, "a valid environment variable name must consist of printable ASCII characters"))
        ]
    if source is None:
        return []
    if variable.get("value"):
        return [(f"{field}.valueFrom", "Invalid value: may not be specified when `value` is not empty")]
    if len(source) != 1:
        return [(f"{field}.valueFrom", "Invalid value: must specify exactly one source")]
    if "fieldRef" in source and not _ENV_FIELDS.fullmatch(path := source["fieldRef"]["fieldPath"]):
        return [
            (
                f"{field}.valueFrom.fieldRef.fieldPath",
                bad(path, "error converting fieldPath: field label not supported"),
            )
        ]
    if "resourceFieldRef" in source or "fileKeyRef" in source:
        raise errors.unsupported(f"env[].valueFrom.{next(iter(source))}")
    return []


def _resources(resources: Object, field: str) -> Mistakes:
    found: Mistakes = []
    if resources.get("claims"):
        raise errors.unsupported("resources.claims")
    limits, requests = resources.get("limits", {}), resources.get("requests", {})
    for kind, amounts in (("limits", limits), ("requests", requests)):
        for name, text in amounts.items():
            at = f"{field}.{kind}[{name}]"
            try:
                value = quantity(text)
            except ValueError as error:
                found.append((at, bad(text, str(error))))
                continue
            if "/" not in name and name not in ("cpu", "memory", "ephemeral-storage"):
                found.append((at, bad(name, "must be a standard resource for containers")))
            if value < 0:
                found.append((at, bad(text, "must be greater than or equal to 0")))
            if "/" in name and value != int(value):
                found.append((at, bad(text, "must be an integer")))
    if found:
        return found
    for name, text in requests.items():
        if "/" in name and name not in limits:
            found.append((f"{field}.limits", "Required value: Limit must be set for non overcommitable resources"))
        elif "/" in name and quantity(text) != quantity(limits[name]):
            found.append((f"{field}.requests", bad(text, f"must be equal to {name} limit of {limits[name]}")))
        elif name in limits and quantity(text) > quantity(limits[name]):
            found.append(
                (f"{field}.requests", bad(text, f"must be less than or equal to {name} limit of {limits[name]}"))
            )
    return found


def _volume(volume: Mapping[str, Any], field: str) -> Mistakes:
    found = label_name(f"{field}.name", volume["name"])
    if len(set(volume) - {"name"}) != 1:
        found.append((field, "Forbidden: may not specify more than 1 volume type"))
    if "secret" in volume and not volume["secret"].get("secretName"):
        found.append((f"{field}.secret.secretName", "Required value"))
    if "configMap" in volume and not volume["configMap"].get("name"):
        found.append((f"{field}.configMap.name", "Required value"))
    if "emptyDir" in volume:
        if (medium := volume["emptyDir"].get("medium", "")) not in ("", "Memory"):
            found.append((f"{field}.emptyDir.medium", f'Unsupported value: "{medium}"'))
        if "sizeLimit" in volume["emptyDir"]:
            try:
                quantity(volume["emptyDir"]["sizeLimit"])
            except ValueError as error:
                found.append((f"{field}.emptyDir.sizeLimit", bad(volume["emptyDir"]["sizeLimit"], str(error))))
    if "hostPath" in volume and not volume["hostPath"]["path"].startswith("/"):
        found.append((f"{field}.hostPath.path", bad(volume["hostPath"]["path"], "must be an absolute path")))
    return found


def _tolerations(spec: Object, field: str) -> Mistakes:
    found: Mistakes = []
    for index, toleration in enumerate(spec.get("tolerations", [])):
        at, operator = f"{field}[{index}]", toleration.get("operator", "Equal")
        if operator not in ("Equal", "Exists"):
            found.append((f"{at}.operator", f'Unsupported value: "{operator}": supported values: "Equal", "Exists"'))
        if not toleration.get("key") and operator != "Exists":
            found.append((f"{at}.operator", bad(operator, "operator must be Exists when `key` is empty")))
        if operator == "Exists" and toleration.get("value"):
            found.append((f"{at}.operator", bad(operator, "value must be empty when `operator` is 'Exists'")))
        if toleration.get("effect", "NoSchedule") not in ("", *_EFFECTS):
            found.append((f"{at}.effect", f'Unsupported value: "{toleration["effect"]}"'))
        if "tolerationSeconds" in toleration and toleration.get("effect") != "NoExecute":
            found.append((f"{at}.effect", "Invalid value: effect must be 'NoExecute' when `tolerationSeconds` is set"))
    return found


def _unique(field: str, names: Iterable[str]) -> Mistakes:
    seen: set[str] = set()
    found: Mistakes = []
    for index, name in enumerate(names):
        if name in seen:
            found.append((f"{field}[{index}].name", f'Duplicate value: "{name}"'))
        seen.add(name)
    return found
