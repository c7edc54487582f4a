"""The teams' file: what it must say, and what a pipeline of a team may name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from mlops.contract.section import SpecError
from mlops_provider.deployment import Deployment, owner_of_file, tenant_of
from mlops_provider.factory import build_dag, build_rollback_dags
from mlops_provider.launchers.kubernetes.job import PodTask
from mlops_provider.launchers.pod import pod_task_of
from mlops_provider.launchers.process import runtime_environment
from mlops_provider.operators.evaluate import EvaluateOperator
from mlops_provider.operators.ingest import IngestOperator
from mlops_provider.operators.rollback import RollbackOperator
from mlops_provider.spec_file import load_pipeline
from mlops_provider.team_spec import TenantError, read_teams

PIPELINE = Path(__file__).parents[1] / "fixtures/pipelines/flight_ranking.pipeline.yaml"
ADS = """\
  ads:
    dags: [ads]
    names: ads_
    store: s3://ads-data/mlops
    store_connection: ads_store
    workspace: ads
    steps_login: ads_steps
    release_login: ads_release
    reader_login: ads_reader
    allowed_connections: [ads_warehouse]
    kubernetes_namespace: ads
    service_account: ads-steps
    allowed_secrets: [ads-keys]
    queue: ads
    pool: ads
    approvers: [anna, arne]
    release_key: keys/ads.pem
    run_as_user: ads
"""
SEARCH = ADS.replace("ads", "search").replace("anna, arne", "berta")


@pytest.fixture
def teams_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "teams.yaml"
    file.write_text("teams:\n" + ADS + SEARCH)
    (tmp_path / "dags/ads").mkdir(parents=True)
    (tmp_path / "dags/search").mkdir()
    monkeypatch.setenv("AIRFLOW__MLOPS__TEAMS_FILE", str(file))
    monkeypatch.setenv("AIRFLOW__MLOPS__STORE", "s3://own/mlops")
    monkeypatch.setenv("AIRFLOW__CORE__DAGS_FOLDER", str(tmp_path / "dags"))
    return file


@pytest.fixture
def edit(teams_file: Path):
    """Read the ranking pipeline as one of team search, with texts replaced, in a folder of dags/."""

    def run(*changes: tuple[str, str], folder: str = "search", text: str | None = None):
        text = text or search_pipeline()
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        name = yaml.safe_load(text)["pipeline"]
        path = teams_file.parent / "dags" / folder / f"{name}.pipeline.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return load_pipeline(path)

    return run


def search_pipeline() -> str:
    text = PIPELINE.read_text().replace("pipeline: flight_ranking", "pipeline: search_ranking\nteam: search")
    return text.replace("registered_model: flight_ranking", "registered_model: search_ranking")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        pytest.param("names: search_", "names: search", ":22:12: teams.search.names must be lower-case letters, digits "
                     "and underscores, and end with an underscore, got 'search'", id="prefix"),
        pytest.param("store: s3://search-data/mlops", "store: s3://search-data/", "must be file:///folder or s3://",
                     id="store"),
        pytest.param("store: s3://search-data/mlops", "store: s3://search-data/a/../b", "without . and ..", id="dots"),
        pytest.param("approvers: [berta]", "aprovers: [berta]", ":35:5: unknown key 'teams.search.aprovers'; did you "
                     "mean 'approvers'?", id="typo"),
        pytest.param("names: search_", "names: ads_b_", "'ads_b_' is in use by team 'ads' too", id="names within"),
        pytest.param("store: s3://search-data/mlops", "store: s3://ads-data/mlops/search",
                     ":23:12: 's3://ads-data/mlops/search' is in use by team 'ads' too", id="store within"),
        pytest.param("store: s3://search-data/mlops", "store: s3://ads-data", "in use by team 'ads'", id="around"),
        pytest.param("dags: [search]", "dags: [ads/b]", "'ads/b' is in use by team 'ads' too", id="folder within"),
        pytest.param("workspace: search", "workspace: ads", "'ads' is in use by team 'ads' too", id="workspace"),
        pytest.param("    workspace: search\n", "", "give it a workspace", id="no workspace"),
        pytest.param("    reader_login: search_reader\n", "", "add reader_login", id="workspace without login"),
        pytest.param("steps_login: search_steps", "steps_login: ads_steps", "'ads_steps' is in use by team 'ads' too",
                     id="login"),
        pytest.param("kubernetes_namespace: search", "kubernetes_namespace: ads", "in use by team 'ads'",
                     id="namespace"),
        pytest.param("run_as_user: search", "run_as_user: ads", "in use by team 'ads'", id="user"),
        pytest.param("run_as_user: search", "run_as_user: root", "root can read everything", id="root"),
        pytest.param("keys/search.pem", "gcpkms:x", "the key gcpkms:x: keys are files",
                     id="key in an unknown service"),
        pytest.param("[search_warehouse]", "[ads_store]", "'ads_store' is the store_connection of team 'ads'",
                     id="another's credentials"),
        pytest.param("[search_warehouse]", "[search_release]", "'search_release' is the release_login of team 'search'",
                     id="its own login, for code of recipes"),
        pytest.param("    dags: [search]\n", "", "teams.search.dags: name the folders", id="no folder"),
    ],
)  # fmt: skip
def test_a_mistake_in_the_file_names_place_value_and_fix(teams_file: Path, old: str, new: str, message: str) -> None:
    assert old in SEARCH
    teams_file.write_text("teams:\n" + ADS + SEARCH.replace(old, new))
    with pytest.raises(SpecError) as raised:
        tenant_of("search")
    assert message in str(raised.value)
    assert str(raised.value).startswith("teams.yaml:")


def test_the_sample_is_sound() -> None:
    teams = read_teams(PIPELINE.parents[3] / "include/kubernetes/teams.yaml")
    assert list(teams) == ["ranking", "research"]


def test_a_missing_file_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: a file that was not mounted would make everything everybody's."""
    monkeypatch.setenv("AIRFLOW__MLOPS__TEAMS_FILE", "/nowhere/teams.yaml")
    with pytest.raises(SpecError, match=r"teams_file: .*/nowhere/teams.yaml"):
        Deployment.load()


def test_a_teams_experiments_read_what_its_own_entry_names(teams_file: Path) -> None:
    open_to = "    experiment_sources: [s3://ads-data/raw/]\n"
    teams_file.write_text("teams:\n" + ADS + open_to + SEARCH)
    assert Deployment.load("ads").experiment_sources == ["s3://ads-data/raw/"]
    assert Deployment.load("search").experiment_sources == []


def test_the_file_is_read_again_when_it_has_changed(teams_file: Path) -> None:
    assert tenant_of("search").name == "search"
    teams_file.write_text("teams:\n" + ADS)
    with pytest.raises(TenantError, match="unknown team 'search'"):
        tenant_of("search")


def test_a_team_has_nothing_of_the_deployment_but_its_machines(
    teams_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken: a team without a key signs with the deployment's, and one without a login reads all of MLflow."""
    for option, value in {
        "RELEASE_KEY": "keys/own.pem",
        "READER_LOGIN": "own",
        "KUBERNETES_NAMESPACE": "o",
        "EXPERIMENT_SOURCES": "s3://own/raw/",
    }.items():
        monkeypatch.setenv(f"AIRFLOW__MLOPS__{option}", value)
    teams_file.write_text("teams:\n  ads: {dags: [ads], names: ads_, store: file:///ads, tracking_uri: http://ads}\n")
    own, ads = Deployment.load(), Deployment.load("ads")
    assert own.logins == {"reader": "own"}
    assert ads.logins == {}
    assert (ads.release_key, ads.public_keys_file, ads.kubernetes_namespace) == (None, None, "")
    assert ([*own.experiment_sources], [*ads.experiment_sources]) == (["s3://own/raw/"], [])
    assert (ads.store, ads.tracking_uri, ads.tracking_url) == ("file:///ads", "http://ads", "http://ads")
    assert ads.pythons == own.pythons


@pytest.mark.parametrize("store", ["s3://ads-data", "s3://ads-data/mlops/own"])
def test_the_deployment_s_own_store_lies_beside_the_teams(
    teams_file: Path, monkeypatch: pytest.MonkeyPatch, store: str
) -> None:
    monkeypatch.setenv("AIRFLOW__MLOPS__STORE", store)
    with pytest.raises(SpecError, match="are not apart"):
        Deployment.load("ads")


@pytest.mark.parametrize(
    ("option", "value", "key"),
    [
        ("release_key", "keys/ads.pem", "release_key"),
        ("kubernetes_namespace", "ads", "kubernetes_namespace"),
        ("release_login", "ads_warehouse", "allowed_connections"),
        ("kubernetes_connection", "ads_warehouse", "allowed_connections"),
        ("steps_login", "ads_release", "release_login"),
        ("reader_login", "ads_store", "store_connection"),
    ],
)
def test_what_is_the_deployment_s_own_is_no_team_s(
    teams_file: Path, monkeypatch: pytest.MonkeyPatch, option: str, value: str, key: str
) -> None:
    """Broken: code of a team's recipes gets the login that releases everybody's models, or signs as the deployment."""
    assert Deployment.load("ads").tenant.name == "ads"
    monkeypatch.setenv(f"AIRFLOW__MLOPS__{option.upper()}", value)
    with pytest.raises(SpecError) as caught:
        Deployment.load("ads")
    assert str(caught.value) == (
        f"[mlops] teams_file: teams.ads.{key} is {value!r}, which is the deployment's own ([mlops] {option}): give the "
        "team one of its own, or remove it"
    )
    assert Deployment.load("search").tenant.name == "search"
    assert Deployment.load().tenant.team is None


@pytest.mark.parametrize("where", ["tracking_uri: http://own/", "workspace: default"])
def test_a_team_has_no_part_of_the_deployment_s_own_mlflow(
    teams_file: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Broken: a team reads and writes the deployment's runs and models; a workspace beside them is its own."""
    monkeypatch.setenv("AIRFLOW__MLOPS__TRACKING_URI", "http://own")
    teams_file.write_text("teams:\n" + ADS.replace("workspace: ads", where) + SEARCH)
    with pytest.raises(SpecError, match=rf"teams.ads.{where.split(':')[0]} is .* the deployment's own"):
        Deployment.load("ads")
    beside = "workspace: ads\n    tracking_uri: http://own"
    teams_file.write_text("teams:\n" + ADS.replace("workspace: ads", beside) + SEARCH)
    assert Deployment.load("ads").workspace == "ads"


def test_a_pipeline_of_a_team_becomes_a_dag(edit) -> None:
    pipeline = edit()
    dag = build_dag(pipeline)
    assert {task.team for task in dag.tasks} == {"search"}
    assert {task.pool for task in dag.tasks} == {"search"}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        pytest.param("team: search", "team: serch", ":2:7: unknown team 'serch'; did you mean 'search'?", id="typo"),
        pytest.param("team: search\n", "", ":1:1: the file is one of team 'search': add team: search", id="no team"),
        pytest.param("team: search", "team: ads", ":2:7: the file is one of team 'search', and may not name team 'ads'",
                     id="another team"),
        pytest.param("pipeline: search_ranking", "pipeline: ads_ranking",
                     "pipeline: 'ads_ranking' is no name of team 'search', whose names begin with 'search_'; it is one "
                     "of team 'ads'", id="pipeline"),
        pytest.param("registered_model: search_ranking", "registered_model: ads_ranking",
                     "register.registered_model: 'ads_ranking' is no name of team 'search'", id="model"),
        pytest.param("registered_model: search_ranking", "registered_model: ranking",
                     "'ranking' is no name of team 'search'", id="nobody's model"),
        pytest.param("\nevaluate:", "\npods: {train: {env_from_secrets: [ads-keys]}}\nevaluate:",
                     "pods.train.env_from_secrets.0: 'ads-keys' is no Secret of team 'search', which has search-keys",
                     id="secret"),
        pytest.param("\nevaluate:", "\npods: {all: {volumes: [{mount_path: /k, secret: ads-keys}]}}\nevaluate:",
                     "pods.all.volumes.0.secret: 'ads-keys'", id="mounted secret"),
        pytest.param("\nevaluate:", "\npods: {all: {volumes: [{mount_path: /k, host_path: /}]}}\nevaluate:",
                     "pods.all.volumes.0.host_path: a folder of the node", id="the node's disk"),
        pytest.param("\nevaluate:", "\npods: {all: {image_pull_secrets: [ads-keys]}}\nevaluate:",
                     "pods.all.image_pull_secrets.0: 'ads-keys'", id="secret of a registry"),
        pytest.param("\nevaluate:", "\npods: {all: {service_account: ads-steps}}\nevaluate:",
                     "pods.all.service_account: got 'ads-steps'; the one of team 'search' is 'search-steps'",
                     id="service account"),
        pytest.param("model_args: {hidden: 64}", "model_args: {hidden: '{{ conn.ads_store.password }}'}",
                     "train.model_args.hidden: a template can read every connection of Airflow", id="Jinja"),
        pytest.param("\nevaluate:", "\npods: {all: {queue: ads}}\nevaluate:", "pods.all.queue: got 'ads'", id="queue"),
        pytest.param("\nevaluate:", "\npods: {all: {labels: {kueue.x-k8s.io/queue-name: ads}}}\nevaluate:",
                     "are the deployment's", id="queue by a label"),
        pytest.param("\nevaluate:", "\npods: {all: {template: include/x/pod.yaml}}\nevaluate:",
                     "pods.all.template: a template is the deployment's to give", id="template"),
        pytest.param("\nevaluate:", "\npromote: {approval: {approvers: [berta, anna]}}\nevaluate:",
                     "promote.approval.approvers.1: 'anna' is no approver of team 'search', which has berta",
                     id="approver"),
    ],
)  # fmt: skip
def test_a_pipeline_names_nothing_of_another_team(edit, old: str, new: str, message: str) -> None:
    """Broken: whoever writes a pipeline reads, or puts into production, what is another team's."""
    with pytest.raises(SpecError) as raised:
        edit((old, new))
    assert message in str(raised.value)


def test_another_team_s_connection_is_refused_where_it_stands(edit) -> None:
    """Broken: `connection: ads_warehouse` hands the password of another team's database to the step."""
    document = yaml.safe_load(search_pipeline())
    source = {"kind": "sql", "connection": "ads_warehouse", "query": "select 1", "event_time": "t"}
    document["ingest"]["sources"] = {"rows": source, **document["ingest"]["sources"]}
    text = yaml.safe_dump(document, sort_keys=False)
    with pytest.raises(SpecError) as raised:
        edit(text=text)
    assert "ingest.sources.rows.connection: 'ads_warehouse' is no Airflow connection of team 'search'" in str(
        raised.value
    )


def test_a_team_s_steps_run_by_the_launchers_that_it_was_given(edit, teams_file: Path) -> None:
    """Broken: a team has a class of its choice run as Airflow's user, who can read every other team's logins."""
    stranger = "launcher: json:JSONDecoder\nlauncher_settings: {all: {a: 1}}\n"
    refused = "'json:JSONDecoder' is no launcher of team 'search', which has process, pod"
    with pytest.raises(SpecError, match=f"launcher: {refused}"):
        edit(text=search_pipeline() + stranger)
    with pytest.raises(SpecError, match=refused):
        evaluate(team="search", launcher="json:JSONDecoder", launcher_settings={"a": 1})
    teams_file.write_text("teams:\n" + SEARCH + '    launchers: ["json:JSONDecoder"]\n')
    assert evaluate(team="search", launcher="json:JSONDecoder").launcher == "json:JSONDecoder"


def test_without_a_team_a_pipeline_takes_no_team_s_name(edit) -> None:
    text = PIPELINE.read_text()
    assert edit(text=text, folder=".").team is None
    with pytest.raises(SpecError, match="'ads_ranking' is a name of team 'ads'.*add team: ads"):
        edit(("registered_model: flight_ranking", "registered_model: ads_ranking"), text=text, folder=".")


@pytest.mark.parametrize(
    ("changed", "name", "folder"),
    [
        pytest.param("pipeline: flight_ranking", "rollback", ".", id="of the deployment"),
        pytest.param("pipeline: search_ranking", "search_rollback", "search", id="of a team"),
    ],
)
def test_no_pipeline_takes_the_place_of_the_rollback(edit, changed: str, name: str, folder: str) -> None:
    """Broken: two files claim the DAG that takes a bad model back, and in an emergency it may be the other one."""
    text = PIPELINE.read_text() if folder == "." else search_pipeline()
    line = text[: text.index(changed)].count("\n") + 1
    with pytest.raises(SpecError) as caught:
        edit((changed, f"pipeline: {name}"), text=text, folder=folder)
    assert str(caught.value).endswith(
        f"{name}.pipeline.yaml:{line}:11: pipeline: '{name}' is the DAG that takes a model back in an emergency "
        "(dags/rollback.py): choose another name"
    )


def test_the_deployment_s_own_files_may_name_each_team(edit) -> None:
    assert edit(folder=".").team == "search"


def test_a_link_makes_no_file_another_s(teams_file: Path) -> None:
    """Broken: a link in one's own folder would make a file the deployment's own, which may name everybody."""
    dags, outside = teams_file.parent / "dags", teams_file.parent / "outside.py"
    outside.touch()
    (dags / "search/link.py").symlink_to(outside)
    (dags / "ads/dag.py").touch()
    (dags / "search/to_ads.py").symlink_to(dags / "ads/dag.py")
    (dags / "by_link").symlink_to(dags / "search")
    teams = read_teams(teams_file)
    assert owner_of_file(teams, dags / "search/link.py") == "search"
    assert owner_of_file(teams, dags / "by_link/x.py") == "search"
    assert owner_of_file(teams, dags / "search/../x.py") is None
    assert owner_of_file(teams, dags / "searching/x.py") is None
    with pytest.raises(TenantError, match="of several teams, ads and search"):
        owner_of_file(teams, dags / "search/to_ads.py")


def test_with_airflow_s_own_teams_the_bundle_decides(teams_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__MULTI_TEAM", "True")
    with pytest.raises(SpecError, match="teams.ads.dags: the team of a file is its bundle's"):
        tenant_of("search")
    text = ADS.replace("    dags: [ads]\n", "") + SEARCH.replace("    dags: [search]\n", "")
    teams_file.write_text("teams:\n" + text)
    local = "airflow.dag_processing.bundles.local.LocalDagBundle"
    git = "airflow.providers.git.bundles.git.GitDagBundle"
    monkeypatch.setenv("AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_STORAGE_PATH", "/bundles")
    monkeypatch.setenv(
        "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST",
        f'[{{"name": "a", "classpath": "{local}", "kwargs": {{"path": "/dags/a"}}, "team_name": "ads"}},'
        f' {{"name": "s", "classpath": "{git}", "kwargs": {{}}, "team_name": "search"}},'
        f' {{"name": "o", "classpath": "{local}", "kwargs": {{"path": "/dags/own"}}}}]',
    )
    assert tenant_of("ads", "/dags/a/x.py").name == "ads"
    assert tenant_of("search", "/bundles/s/versions/1/dags/x.py").name == "search"
    assert tenant_of(None, "/dags/own/x.py").name is None
    with pytest.raises(TenantError, match="the file is one of team 'search'"):
        tenant_of("ads", "/bundles/s/versions/1/dags/x.py")
    assert list(build_rollback_dags(Path("/dags/own/rollback.py"))) == ["rollback"]
    assert list(build_rollback_dags(Path("/dags/a/rollback.py"))) == ["ads_rollback"]


def test_the_deployment_s_own_operators_name_nothing_of_a_team_when_they_run(teams_file: Path) -> None:
    """Broken: a rendered parameter of an own DAG, as the model of `rollback`, may be a team's."""
    assert Deployment.load().tenant.why_not_name("ads_m") is not None
    assert Deployment.load().tenant.why_not_name("m") is None


def test_an_operator_names_nothing_of_another_team(teams_file: Path) -> None:
    """The same from Python, where no file of a pipeline is read."""
    with pytest.raises(SpecError, match="task 'evaluate': 'ads_m' is no name of team 'search'"):
        evaluate(team="search", registered_model="ads_m")
    with pytest.raises(SpecError, match="pool must be 'search', the one of team 'search', got 'ads'"):
        evaluate(team="search", pool="ads")
    with pytest.raises(SpecError, match="env_from_secrets.0: 'ads-keys' is no Secret"):
        evaluate(team="search", pods={"env_from_secrets": ["ads-keys"]})
    with pytest.raises(SpecError, match="task 'evaluate': a template can read every connection of Airflow"):
        evaluate(team="search", slices=["{{ conn.ads_store.password }}"])
    with pytest.raises(SpecError, match="'search_p' is a name of team 'search'"):
        evaluate(team=None)
    sources = {"rows": {"kind": "sql", "connection": "ads_warehouse", "query": "select 1", "event_time": "t"}}
    with pytest.raises(SpecError, match="'ads_warehouse' is no Airflow connection of team 'search'"):
        IngestOperator(task_id="ingest", pipeline="search_p", team="search", sources=sources, event_time="t", window=28)


def evaluate(**settings) -> EvaluateOperator:
    given = {"registered_model": "search_m", "metric": "auc", "pipeline": "search_p"} | settings
    return EvaluateOperator(task_id="evaluate", checkpoint="{{ ref }}", **given)


def test_pods_of_a_team_are_in_its_namespace_and_its_queue(teams_file: Path) -> None:
    """Broken: pods of a team run in another one's namespace, where its Secrets can be mounted, or on its quota."""
    task = evaluate(team="search", launcher="pod", pods={"env_from_secrets": ["search-keys"]})
    made = pod_task_of(task.step_task("r"), Deployment.load("search"))
    assert (made.pods.service_account, made.pods.queue) == ("search-steps", "search")
    again = PodTask.from_json(json.loads(json.dumps(made.to_json())))
    assert again.team == "search", "the triggerer makes the Job"
    assert again.job(Deployment.load(again.team)).deployment.kubernetes_namespace == "search"
    teams_file.write_text("teams:\n" + SEARCH.replace("    kubernetes_namespace: search\n", ""))
    with pytest.raises(SpecError, match="team 'search' has no kubernetes_namespace"):
        pod_task_of(task.step_task("r"), Deployment.load("search"))


def test_each_team_has_a_rollback_of_its_own(teams_file: Path) -> None:
    dags = build_rollback_dags(teams_file.parent / "dags/rollback.py")
    assert {name: dag.task_dict["rollback"].team for name, dag in dags.items()} == {
        "rollback": None, "ads_rollback": "ads", "search_rollback": "search",
    }  # fmt: skip
    assert all(isinstance(dag.task_dict["rollback"], RollbackOperator) for dag in dags.values())


def test_a_team_s_step_gets_nothing_of_the_worker_s_environment_but_the_machine(teams_file: Path) -> None:
    """Broken: the worker's own credentials open every team's store to code of a recipe."""
    worker = {
        "AWS_ACCESS_KEY_ID": "own", "AWS_SECRET_ACCESS_KEY": "own", "AWS_SESSION_TOKEN": "own", "AWS_PROFILE": "own",
        "AWS_WEB_IDENTITY_TOKEN_FILE": "/token", "AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://x",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": "x", "AIRFLOW_CONN_ADS_STORE": "x", "MLFLOW_TRACKING_PASSWORD": "x",
        "MLFLOW_TRACKING_TOKEN": "x", "KUBECONFIG": "x", "VAULT_TOKEN": "x", "PGPASSWORD": "x", "DATABASE_URL": "x",
    }  # fmt: skip
    machine = {"PATH": "/bin", "HOME": "/h", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "0", "TZ": "UTC"}
    machine |= {"AWS_ENDPOINT_URL": "http://s3", "AWS_REGION": "r", "AWS_ALLOW_HTTP": "true", "NO_PROXY": "*"}
    given = runtime_environment(Deployment.load("search"), worker | machine)
    assert given.items() >= machine.items()
    assert not given.keys() & worker.keys()
    assert given["MLOPS_STORE"] == "s3://search-data/mlops"
    assert not any("own" in value for name, value in given.items() if name not in machine)
