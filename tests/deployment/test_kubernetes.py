"""include/kubernetes: valid, of one piece, and with no more rights than are needed."""

from __future__ import annotations

import re
from typing import Any

import kubernetes_validate
import pytest
import yaml
from deployment.files import KUBERNETES, airflow_options, compose, image_tags, manifests, of_kind, pinned, values

from mlops_provider.get_provider_info import get_provider_info
from mlops_provider.launchers.kubernetes.manifests import COMPONENT, MLFLOW

VERSION = "1.34"
NUM_GPUS = 128
TRAINING_STEP = {"matchLabels": {"app.kubernetes.io/component": "training-step"}}
ASKING_MLFLOW = {"matchLabels": COMPONENT | MLFLOW}
LOGINS = ("steps", "release", "reader")
OURS = [each for each in manifests() if not each["apiVersion"].startswith("kueue.x-k8s.io/")]
KUEUE = [each for each in manifests() if each["apiVersion"].startswith("kueue.x-k8s.io/")]


def _id(each: dict[str, Any]) -> str:
    return f"{each['kind']}-{each['metadata'].get('namespace', '')}-{each['metadata']['name']}"


@pytest.mark.parametrize("manifest", OURS, ids=_id)
def test_a_manifest_is_valid(manifest: dict[str, Any]) -> None:
    kubernetes_validate.validate(manifest, VERSION, strict=True)


def test_names_are_there_once() -> None:
    names = [_id(each) for each in manifests()]
    assert len(set(names)) == len(names)


def test_namespaces_are_there_before_what_is_in_them() -> None:
    assert {each["kind"] for each in manifests()[:2]} == {"Namespace"}
    assert {each["metadata"].get("namespace") for each in manifests()} - {None} == of_kind("Namespace").keys()


def test_the_kustomization_lists_every_file_in_order() -> None:
    listed = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())["resources"]
    assert listed == sorted(path.name for path in KUBERNETES.glob("[0-9]*.yaml"))


@pytest.mark.parametrize("path", sorted(KUBERNETES.glob("*.yaml")), ids=lambda path: path.name)
def test_a_file_says_first_what_it_is_for(path: Any) -> None:
    assert path.read_text().startswith("# ")


def test_users_code_is_restricted() -> None:
    labels = of_kind("Namespace")["mlops-training"]["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    assert labels["pod-security.kubernetes.io/enforce-version"] == f"v{VERSION}"


# --- Rights ---


def test_airflow_may_do_what_launching_needs_and_nothing_else() -> None:
    assert [name for kind in ("ClusterRole", "ClusterRoleBinding") for name in of_kind(kind)] == []
    (role,) = of_kind("Role").values()
    assert role["metadata"]["namespace"] == "mlops-training"
    rights = {
        (group, resource): set(rule["verbs"])
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    assert rights == {
        ("batch", "jobs"): {"create", "get", "list", "watch", "patch", "delete"},
        ("", "pods"): {"get", "list", "watch"},
        ("", "pods/log"): {"get"},
        ("", "events"): {"get", "list", "watch"},
        ("visibility.kueue.x-k8s.io", "localqueues/pendingworkloads"): {"get"},
        ("", "secrets"): {"create"},
        ("", "services"): {"create"},
    }


def test_only_airflow_s_launcher_may() -> None:
    (binding,) = of_kind("RoleBinding").values()
    assert binding["metadata"]["namespace"] == "mlops-training"
    assert binding["roleRef"]["name"] in of_kind("Role")
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "airflow-launcher", "namespace": "mlops"}]
    assert "airflow-launcher" in of_kind("ServiceAccount", "mlops")


def test_no_step_has_a_token() -> None:
    accounts = of_kind("ServiceAccount", "mlops-training")
    assert accounts.keys() == {"training", "default"}
    assert all(account["automountServiceAccountToken"] is False for account in accounts.values())


# --- Network ---


def test_nothing_is_allowed_by_default() -> None:
    default = of_kind("NetworkPolicy", "mlops-training")["nothing-by-default"]["spec"]
    assert default == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}


def test_what_is_allowed_is_for_steps() -> None:
    for name, policy in of_kind("NetworkPolicy", "mlops-training").items():
        whose = {"nothing-by-default": {}, "mlflow": ASKING_MLFLOW}.get(name, TRAINING_STEP)
        assert policy["spec"]["podSelector"] == whose


def test_mlflow_is_reached_by_those_who_have_a_login_there() -> None:
    """Broken: steps that have nothing to do there reach it, or those that have do not."""
    (rule,) = of_kind("NetworkPolicy", "mlops")["mlflow"]["spec"]["ingress"]
    assert [caller.get("podSelector") for caller in rule["from"]] == [
        ASKING_MLFLOW,
        {"matchLabels": of_kind("Job")["mlflow-logins"]["spec"]["template"]["metadata"]["labels"]},
        {"matchLabels": {"tier": "airflow"}},
        None,
    ]


def test_only_steps_reach_steps() -> None:
    callers = [
        caller
        for policy in of_kind("NetworkPolicy", "mlops-training").values()
        for rule in policy["spec"].get("ingress", [])
        for caller in rule.get("from", ["anybody"])
    ]
    assert callers == [{"podSelector": TRAINING_STEP}]


def test_steps_reach_only_known_ports_and_no_metadata_service() -> None:
    for policy in of_kind("NetworkPolicy", "mlops-training").values():
        for rule in policy["spec"].get("egress", []):
            if rule["to"] == [{"podSelector": TRAINING_STEP}]:
                continue
            assert {port["port"] for port in rule["ports"]} <= {53, 443, 5000, 5432, 6379, 8333, 9092}
            for target in rule["to"]:
                if block := target.get("ipBlock"):
                    assert "169.254.0.0/16" in block["except"], "cloud credentials of the node"
                else:
                    assert target["namespaceSelector"]["matchLabels"]


# --- Sharing ---


def _quotas(field: str) -> dict[tuple[str, str], int]:
    """Of GPUs, by queue and flavor."""
    return {
        (name, flavor["name"]): resource[field]
        for name, queue in of_kind("ClusterQueue").items()
        for group in queue["spec"]["resourceGroups"]
        for flavor in group["flavors"]
        for resource in flavor["resources"]
        if resource["name"] == "nvidia.com/gpu"
    }


def test_the_teams_own_all_gpus_and_no_more() -> None:
    nominal = _quotas("nominalQuota")
    assert len(of_kind("ClusterQueue")) == 3
    assert sum(nominal.values()) == NUM_GPUS
    assert min(nominal.values()) > 0
    assert of_kind("ResourceQuota")["training"]["spec"]["hard"]["requests.nvidia.com/gpu"] == str(NUM_GPUS)


def test_a_team_can_borrow_less_than_the_others_have() -> None:
    """Otherwise one team's flood could take all that is idle, and the limit would be none."""
    nominal = _quotas("nominalQuota")
    for (queue, flavor), limit in _quotas("borrowingLimit").items():
        others = sum(gpus for (name, of), gpus in nominal.items() if of == flavor and name != queue)
        assert 0 < limit < others


def test_what_a_team_owns_it_gets_back() -> None:
    for queue in of_kind("ClusterQueue").values():
        assert queue["apiVersion"] == "kueue.x-k8s.io/v1beta2"
        assert queue["spec"]["cohortName"] in of_kind("Cohort")
        assert queue["spec"]["preemption"] == {"reclaimWithinCohort": "Any", "withinClusterQueue": "LowerPriority"}
        assert int(queue["spec"]["fairSharing"]["weight"]) > 0


def test_weights_count() -> None:
    text = values("kueue_values.yaml")["managerConfig"]["controllerManagerConfigYaml"]
    configuration = yaml.safe_load(text)
    assert configuration["fairSharing"]["preemptionStrategies"]
    assert configuration["integrations"]["frameworks"] == ["batch/job"]


def test_queues_and_flavors_are_there() -> None:
    local = of_kind("LocalQueue", "mlops-training")
    assert {queue["spec"]["clusterQueue"] for queue in local.values()} == of_kind("ClusterQueue").keys()
    assert {flavor for _, flavor in _quotas("nominalQuota")} == of_kind("ResourceFlavor").keys()
    assert {each["apiVersion"] for each in KUEUE} == {"kueue.x-k8s.io/v1beta2"}


def test_both_schedulers_have_the_same_order() -> None:
    pods = {name: each["value"] for name, each in of_kind("PriorityClass").items()}
    assert pods == {name: each["value"] for name, each in of_kind("WorkloadPriorityClass").items()}
    assert pods["mlops-production"] > pods["mlops-default"] > pods["mlops-experiments"]
    assert not any(each.get("globalDefault") for each in of_kind("PriorityClass").values())


# --- MLflow and Airflow ---


def test_mlflow_is_confined() -> None:
    pod = of_kind("Deployment")["mlflow"]["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in [*pod["initContainers"], *pod["containers"]]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["limits"]["memory"]
        assert {"name": "tmp", "mountPath": "/tmp"} in container["volumeMounts"]


def test_everybody_has_the_same_logins_at_mlflow() -> None:
    """Broken: the Job makes other users than Airflow asks as."""
    chart = values("airflow_values.yaml")
    (job,) = of_kind("Job")["mlflow-logins"]["spec"]["template"]["spec"]["containers"]
    own = {each["name"]: each for each in job["env"]}
    for component in ("scheduler", "triggerer"):
        given = {each["name"]: each for each in chart[component]["env"]}
        assert given.items() <= own.items()
        for login in LOGINS:
            connection = chart["config"]["mlops"][f"{login}_login"]
            assert own[f"AIRFLOW__MLOPS__{login.upper()}_LOGIN"]["value"] == connection
            assert given[f"AIRFLOW_CONN_{connection.upper()}"]["value"].startswith(f"http://{login}:$(")
    for component in ("apiServer", "dagProcessor"):
        assert "mlflow" not in str(chart[component]), "it asks MLflow nothing"
    (server,) = of_kind("Deployment")["mlflow"]["spec"]["template"]["spec"]["containers"]
    admin = {"secretKeyRef": {"name": "mlflow-logins", "key": "admin"}}
    assert {"name": "MLFLOW_AUTH_ADMIN_PASSWORD", "valueFrom": admin} in server["env"]
    assert own["MLFLOW_TRACKING_PASSWORD"]["valueFrom"] == admin
    assert server["command"] == compose()["services"]["mlflow"]["command"]


def test_mlflow_outlives_a_node() -> None:
    deployment, budget = of_kind("Deployment")["mlflow"], of_kind("PodDisruptionBudget")["mlflow"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["replicas"] > budget["spec"]["minAvailable"] >= 1
    assert budget["spec"]["selector"]["matchLabels"] == labels == of_kind("Service")["mlflow"]["spec"]["selector"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert {"startupProbe", "readinessProbe", "livenessProbe"} <= container.keys()


def test_images_are_pinned_and_those_of_compose() -> None:
    airflow = values("airflow_values.yaml")["images"]["airflow"]
    images = {*image_tags(manifests()), f"{airflow['repository']}:{airflow['tag']}"}
    assert all(pinned(image) for image in images)
    assert {image.partition(":")[2] for image in images} == {
        image.partition(":")[2] for image in image_tags(compose()) if image.startswith("mlops/")
    }


def _plain_secrets(document: Any, path: str = "") -> list[str]:
    """Places of values that look like a secret's, rather than the name of a Secret."""
    if isinstance(document, dict):
        if re.search(r"(?i)password|secret|token", str(document.get("name", ""))) and "value" in document:
            return [path]
        return [found for key, value in document.items() for found in _plain_secrets(value, f"{path}.{key}")]
    if isinstance(document, list):
        return [found for value in document for found in _plain_secrets(value, path)]
    key = path.rpartition(".")[2]
    named = re.search(r"(?i)password$|passwd|secretkey$|fernetkey$|\bpass$", key)
    return [path] if (named and document) or re.search(r"://\w*:\w+@", str(document)) else []


def test_no_secret_is_written_anywhere() -> None:
    assert _plain_secrets({"password": "x"})
    assert _plain_secrets({"env": [{"name": "ADMIN_PASSWORD", "value": "x"}]})
    for document in [*manifests(), values("airflow_values.yaml"), values("kueue_values.yaml")]:
        assert _plain_secrets(document) == []
    assert of_kind("Secret") == {}


def test_airflow_makes_no_database_nor_user_with_a_known_password() -> None:
    chart = values("airflow_values.yaml")
    assert chart["postgresql"] == {"enabled": False}
    assert chart["redis"] == {"enabled": False}
    assert chart["createUserJob"]["defaultUser"] == {"enabled": False}
    assert chart["data"]["metadataSecretName"]
    assert chart["fernetKeySecretName"]
    assert chart["apiSecretKeySecretName"]
    assert chart["jwtSecretName"]


def test_airflow_launches_as_the_account_that_may() -> None:
    chart = values("airflow_values.yaml")
    assert chart["allowPodLaunching"] is False
    for component in ("scheduler", "triggerer"):
        assert chart[component]["serviceAccount"] == {"create": False, "name": "airflow-launcher"}
        assert chart[component]["replicas"] == 2


def test_airflow_and_the_provider_know_every_option_that_is_set() -> None:
    """A misspelt one would be passed over in silence."""
    own = get_provider_info()["config"]["mlops"]["options"].keys()
    for section, options in values("airflow_values.yaml")["config"].items():
        assert options.keys() <= (own if section == "mlops" else airflow_options()[section])


def test_what_airflow_is_told_of_the_cluster_is_there() -> None:
    mlops = values("airflow_values.yaml")["config"]["mlops"]
    assert mlops["launcher"] == "pod"
    assert mlops["kubernetes_namespace"] in of_kind("Namespace")
    server = of_kind("Service")["mlflow"]
    (port,) = server["spec"]["ports"]
    assert mlops["tracking_uri"] == f"http://mlflow.{server['metadata']['namespace']}:{port['port']}"
    (container,) = of_kind("Deployment")["mlflow"]["spec"]["template"]["spec"]["containers"]
    (names,) = (each["value"] for each in container["env"] if each["name"] == "MLFLOW_SERVER_ALLOWED_HOSTS")
    assert mlops["tracking_uri"].removeprefix("http://") in names.split(","), "MLflow refuses other names"
    airflow = values("airflow_values.yaml")["images"]["airflow"]
    images = {mlops["training_image"], mlops["validation_image"], f"{airflow['repository']}:{airflow['tag']}"}
    assert images >= set(image_tags(manifests()))
    defaults = yaml.safe_load((KUBERNETES.parents[1] / mlops["pod_defaults"]).read_text())["all"]
    assert defaults["priority_class"] in of_kind("PriorityClass")
    assert defaults["service_account"] in of_kind("ServiceAccount", "mlops-training")
