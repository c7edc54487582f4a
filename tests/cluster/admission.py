"""What an object must pass before it is stored: defaults, rules of its kind, what it refers to, what may change."""

from __future__ import annotations

import base64
import binascii

from cluster import errors, job_rules, pod_rules, schema
from cluster.config import Configuration
from cluster.formats import Mistakes, annotation_keys, bad, label_name, labels, service_name, subdomain_name
from cluster.objects import Object, Resource, copied, name_of, namespace_of, random_suffix, timestamp
from cluster.quantities import quantity
from cluster.queues import Queues
from cluster.store import Store

_NEVER_SET = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation", "selfLink")


class Admission:
    """The gate in front of the store, for requests and controllers alike."""

    def __init__(self, store: Store, configuration: Configuration, queues: Queues) -> None:
        self._store = store
        self._configuration = configuration
        self._queues = queues

    def create(self, resource: Resource, value: Object, namespace: str) -> Object:
        """
        Store a new object.

        :raises ApiError: it breaks a rule, or there is one of its name
        """
        value = copied(value)
        schema.check(value, resource.kind, resource.api_version)
        metadata = value.setdefault("metadata", {})
        if metadata.get("resourceVersion"):
            raise errors.bad_request("resourceVersion should not be set on objects to be created")
        if metadata.get("namespace", namespace) != namespace:
            raise errors.bad_request(
                "the namespace of the provided object does not match the namespace sent on the request"
            )
        for name in _NEVER_SET:
            metadata.pop(name, None)
        if resource.namespaced:
            metadata["namespace"] = namespace
            home = self._store.get("namespaces", "", namespace)
            if "deletionTimestamp" in home["metadata"]:
                why = f"unable to create new content in namespace {namespace} because it is being terminated"
                raise errors.forbidden(resource, metadata.get("name", ""), why)
        if "name" not in metadata:
            if "generateName" not in metadata:
                raise errors.invalid(
                    resource, "", [("metadata.name", "Required value: name or generateName is required")]
                )
            metadata["name"] = metadata["generateName"][:58] + random_suffix()
        if "status" in value and resource.kind not in ("Node", "Event"):
            del value["status"]
        self._complete(resource, value)
        if resource.kind == "Job":
            self._queues.hold(value)
        self._check(resource, value)
        self._look_up(resource, value)
        created = self._store.create(resource.plural, value)
        if resource.kind != "Job":
            return created
        selected = copied(created)
        job_rules.select(selected)
        return self._store.replace("jobs", selected)

    def update(self, resource: Resource, old: Object, new: Object, *, status: bool = False) -> Object:
        """
        Store a changed object; of its status, and only of it, where that is asked for.

        :raises ApiError: it breaks a rule, changes what cannot be changed, or somebody else was faster
        """
        new = copied(new)
        schema.check(new, resource.kind, resource.api_version)
        self._same_object(resource, old, new)
        if status:
            new = copied(old) | {"status": new.get("status", {})}
            return self._store.replace(resource.plural, new)
        if resource.kind not in ("Node", "Event"):
            new.pop("status", None)
            if "status" in old:
                new["status"] = copied(old["status"])
        self._complete(resource, new)
        self._check(resource, new)
        self._unchanged(resource, old, new)
        if new.get("spec") != old.get("spec"):
            new["metadata"]["generation"] = old["metadata"].get("generation", 1) + 1
        return self._store.replace(resource.plural, new)

    def _same_object(self, resource: Resource, old: Object, new: Object) -> None:
        metadata, before = new["metadata"], old["metadata"]
        if metadata.get("name") != before["name"] or metadata.get("namespace") != before.get("namespace"):
            raise errors.bad_request("the name and namespace of the object do not match those of the URL")
        if metadata.get("uid", before["uid"]) != before["uid"]:
            why = f"Precondition failed: UID in precondition: {metadata['uid']}, UID in object meta: {before['uid']}"
            raise errors.conflict(resource, before["name"], why)
        if metadata.get("resourceVersion", before["resourceVersion"]) != before["resourceVersion"]:
            why = "the object has been modified; please apply your changes to the latest version and try again"
            raise errors.conflict(resource, before["name"], why)
        for name in (*_NEVER_SET, "resourceVersion"):
            metadata.pop(name, None)
            if name in before:
                metadata[name] = before[name]
        if "deletionTimestamp" in before and set(metadata.get("finalizers", [])) - set(before.get("finalizers", [])):
            text = "Forbidden: no new finalizers can be added if the object is being deleted"
            raise errors.invalid(resource, before["name"], [("metadata.finalizers", text)])

    def _complete(self, resource: Resource, value: Object) -> None:
        match resource.kind:
            case "Pod":
                pod_rules.complete(value["spec"])
                value.setdefault(
                    "status", {"phase": "Pending", "qosClass": pod_rules.quality_of_service(value["spec"])}
                )
            case "Job":
                job_rules.complete(value)
                value.setdefault("status", {})
            case "Secret":
                value.setdefault("type", "Opaque")
                for key, text in value.pop("stringData", {}).items():
                    value.setdefault("data", {})[key] = base64.b64encode(text.encode()).decode()
            case "Service":
                value.setdefault("spec", {}).setdefault("type", "ClusterIP")
                value["spec"].setdefault("clusterIPs", [value["spec"].get("clusterIP", "")])
                value.setdefault("status", {"loadBalancer": {}})
            case "Namespace":
                value.setdefault("spec", {"finalizers": ["kubernetes"]})
                value.setdefault("status", {"phase": "Active"})
                value["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = name_of(value)
            case "Node":
                _complete_node(value)
            case _:
                pass

    def _check(self, resource: Resource, value: Object) -> None:
        named = {"Service": service_name, "Namespace": label_name, "Job": label_name}.get(resource.kind, subdomain_name)
        found = named("metadata.name", name_of(value))
        found += labels("metadata.labels", value["metadata"].get("labels", {}))
        found += annotation_keys("metadata.annotations", value["metadata"].get("annotations", {}))
        found += _owners(value)
        match resource.kind:
            case "Pod":
                found += pod_rules.check(value["metadata"], value["spec"])
            case "Job":
                found += job_rules.check(value)
            case "Secret" | "ConfigMap":
                found += _data(value, resource.kind)
            case "Service":
                found += _service(value)
            case "Event":
                if namespace_of(value) != value["involvedObject"].get("namespace", "default"):
                    found.append(("involvedObject.namespace", "Invalid value: does not match event.namespace"))
            case "Node":
                found += _taints(value)
            case _:
                pass
        if found:
            raise errors.invalid(resource, name_of(value), list(dict.fromkeys(found)))

    def _look_up(self, resource: Resource, value: Object) -> None:
        if resource.kind != "Pod":
            return
        spec, name = value["spec"], name_of(value)
        if (account := spec["serviceAccountName"]) not in self._configuration.service_accounts:
            why = f"error looking up service account {namespace_of(value)}/{account}: "
            why += f'serviceaccount "{account}" not found'
            raise errors.forbidden(resource, name, why)
        if "priorityClassName" in spec and spec["priorityClassName"] not in self._configuration.priority_classes:
            why = f"no PriorityClass with name {spec['priorityClassName']} was found"
            raise errors.forbidden(resource, name, why)
        if "nodeName" in spec:
            raise errors.unsupported("spec.nodeName of a new pod")

    def _unchanged(self, resource: Resource, old: Object, new: Object) -> None:
        name = name_of(old)
        match resource.kind:
            case "Pod":
                before, after = _pod_identity(old), _pod_identity(new)
                text = "Forbidden: pod updates may not change fields other than `spec.containers[*].image`,"
                text += (
                    "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions)"
                )
                gates = {gate["name"] for gate in old["spec"].get("schedulingGates", [])}
                if before != after or {gate["name"] for gate in new["spec"].get("schedulingGates", [])} - gates:
                    raise errors.invalid(resource, name, [("spec", text)])
                if any(each not in new["spec"].get("tolerations", []) for each in old["spec"].get("tolerations", [])):
                    raise errors.invalid(resource, name, [("spec", text)])
            case "Job":
                fields = ["selector", "completionMode", "podFailurePolicy", "successPolicy", "backoffLimitPerIndex"]
                resizable = new["spec"]["completionMode"] == "Indexed"
                if not (resizable and new["spec"].get("completions") == new["spec"]["parallelism"]):
                    fields.append("completions")
                if not (old["spec"]["suspend"] and "startTime" not in old.get("status", {})):
                    fields.append("template")
                mistakes = [
                    (f"spec.{field}", "Invalid value: field is immutable")
                    for field in fields
                    if old["spec"].get(field) != new["spec"].get(field)
                ]
                if mistakes:
                    raise errors.invalid(resource, name, mistakes)
            case "Secret" | "ConfigMap":
                if old.get("immutable") and old.get("data") != new.get("data"):
                    text = "Forbidden: field is immutable when `immutable` is set"
                    raise errors.invalid(resource, name, [("data", text)])
                if old.get("type") != new.get("type"):
                    raise errors.invalid(resource, name, [("type", "Invalid value: field is immutable")])
            case _:
                pass


def _complete_node(node: Object) -> None:
    node["metadata"].setdefault("labels", {})
    node["metadata"]["labels"] |= {"kubernetes.io/hostname": name_of(node), "kubernetes.io/os": "linux"}
    node.setdefault("spec", {})
    for taint in node["spec"].get("taints", []):
        if taint["effect"] == "NoExecute":
            taint.setdefault("timeAdded", timestamp())
    status = node.setdefault("status", {})
    status.setdefault("capacity", {"cpu": "8", "memory": "32Gi", "pods": "110"})
    status["capacity"].setdefault("pods", "110")
    status.setdefault("allocatable", dict(status["capacity"]))
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is posting ready status"}
    status.setdefault("conditions", [ready | {"lastTransitionTime": timestamp(), "lastHeartbeatTime": timestamp()}])
    status.setdefault("addresses", [{"type": "InternalIP", "address": "127.0.0.1"}])


def _owners(value: Object) -> Mistakes:
    found: Mistakes = []
    owners = value["metadata"].get("ownerReferences", [])
    if sum(bool(owner.get("controller")) for owner in owners) > 1:
        text = "Invalid value: Only one reference can have Controller set to true"
        found.append(("metadata.ownerReferences", text))
    for index, owner in enumerate(owners):
        for name in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(name):
                found.append((f"metadata.ownerReferences[{index}].{name}", "Invalid value: must not be empty"))
    return found


def _data(value: Object, kind: str) -> Mistakes:
    found: Mistakes = []
    values = value.get("data", {})
    for key, text in values.items():
        if not key or len(key) > 253 or not all(each.isalnum() or each in "-_." for each in key) or key in (".", ".."):
            found.append(
                (
                    f"data[{key}]",
                    bad(key, "a valid config key must consist of alphanumeric characters, '-', '_' or '.'"),
                )
            )
        if kind == "Secret":
            try:
                base64.b64decode(text, validate=True)
            except binascii.Error as error:
                raise errors.bad_request(f"data[{key}]: illegal base64 data: {error}") from error
    if sum(map(len, values.values())) > 1 << 20:
        found.append(("data", "Too long: may not be more than 1048576 bytes"))
    return found


def _service(value: Object) -> Mistakes:
    spec, found = value["spec"], list[tuple[str, str]]()
    if spec.get("clusterIP") != "None" or spec["type"] != "ClusterIP":
        raise errors.unsupported("Services other than headless ones (clusterIP: None)")
    if not spec.get("selector"):
        raise errors.unsupported("Services without a selector")
    found += labels("spec.selector", spec["selector"])
    ports = spec.get("ports", [])
    for index, port in enumerate(ports):
        at = f"spec.ports[{index}]"
        if not 0 < port["port"] < 65536:
            found.append((f"{at}.port", bad(port["port"], "must be between 1 and 65535, inclusive")))
        if len(ports) > 1 and not port.get("name"):
            found.append((f"{at}.name", "Required value"))
        if "name" in port:
            found += label_name(f"{at}.name", port["name"])
    if len({port.get("name") for port in ports}) != len(ports):
        found.append(("spec.ports", "Duplicate value: the names of ports must be unique"))
    return found


def _taints(value: Object) -> Mistakes:
    found: Mistakes = []
    for index, taint in enumerate(value["spec"].get("taints", [])):
        if taint["effect"] not in ("NoSchedule", "PreferNoSchedule", "NoExecute"):
            found.append((f"spec.taints[{index}].effect", f'Unsupported value: "{taint["effect"]}"'))
        found += labels(f"spec.taints[{index}]", {taint["key"]: taint.get("value", "")})
    for name, amount in value["status"]["capacity"].items():
        try:
            quantity(amount)
        except ValueError as error:
            found.append((f"status.capacity[{name}]", bad(amount, str(error))))
    return found


def _pod_identity(pod: Object) -> Object:
    spec = copied(pod["spec"])
    for name in ("activeDeadlineSeconds", "tolerations", "schedulingGates"):
        spec.pop(name, None)
    for container in pod_rules.containers_of(spec):
        container.pop("image", None)
    return spec
