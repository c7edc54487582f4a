"""docker-compose.yaml and the .env that goes with it."""

from __future__ import annotations

import json
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import services
from cryptography.fernet import Fernet
from deployment.files import REPOSITORY, airflow_options, compose, image_tags, lineage, pinned, stages

from mlops_provider.local.stack import LOGIN_SETTINGS

SCRIPT = REPOSITORY / "include/compose/environment.sh"
TEXT = (REPOSITORY / "docker-compose.yaml").read_text()
SERVICES: dict[str, dict[str, Any]] = compose()["services"]
REQUIRED = set(re.findall(r"\$\{(\w+):\?", TEXT))
HAVE_DEFAULTS = set(re.findall(r"\$\{(\w+):-", TEXT))


def _generate(target: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["sh", SCRIPT, target], capture_output=True, text=True, check=False, timeout=30)


def _variables(path: Path) -> dict[str, str]:
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


@pytest.fixture
def env(tmp_path: Path) -> Path:
    path = tmp_path / ".env"
    assert _generate(path).returncode == 0
    return path


def test_the_env_file_holds_what_compose_asks_for_and_nothing_else(env: Path) -> None:
    assert _variables(env).keys() == REQUIRED


def test_only_ports_have_defaults() -> None:
    """A secret with a default would be everybody's."""
    assert {"AIRFLOW_PORT", "MLFLOW_PORT"} == HAVE_DEFAULTS
    assert not re.search(r"(?<!\$)\$\{\w+\}", TEXT), "a variable that may be empty"


def test_the_env_file_is_its_owner_s_alone(env: Path) -> None:
    assert stat.S_IMODE(env.stat().st_mode) == 0o600


def test_the_env_file_is_made_once(env: Path) -> None:
    before = env.read_bytes()
    again = _generate(env)
    assert again.returncode != 0
    assert "already" in again.stderr
    assert env.read_bytes() == before
    assert [each.name for each in env.parent.iterdir()] == [".env"], "no draft stays behind"


def test_secrets_are_random_long_and_never_the_same(env: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = tmp_path / "other/.env"
    assert _generate(other).returncode == 0
    found = [*_variables(env).values(), *_variables(other).values()]
    assert len(set(found)) == len(found)
    assert min(map(len, found)) >= 20
    # As they stand in URLs, JSON and shell lines of the compose file.
    assert all(re.fullmatch(r"[\w=-]+", value) for value in found)


def test_airflow_can_encrypt_with_the_key(env: Path) -> None:
    key = Fernet(_variables(env)["AIRFLOW_FERNET_KEY"])
    assert key.decrypt(key.encrypt(b"password")) == b"password"


def test_no_secret_is_written_in_the_file() -> None:
    for name, service in SERVICES.items():
        for variable, value in service.get("environment", {}).items():
            secret = re.search(r"PASSWORD$|SECRET|_KEY$|KEY_ID$", variable) or urlsplit(value).password
            if secret and value != "/keys/release.pem":  # a file of a volume
                assert re.search(r"\$\{\w+:\?", value), f"{name}: {variable}"


def test_every_image_is_pinned() -> None:
    assert image_tags(compose())
    assert [image for image in image_tags(compose()) if not pinned(image)] == []


def test_images_of_ours_are_built_from_a_target() -> None:
    built = {service["image"]: service["build"]["target"] for service in SERVICES.values() if "build" in service}
    assert set(built.values()) <= stages().keys()
    assert built.keys() == {image for image in image_tags(SERVICES) if image.startswith("mlops/")}
    arguments = {
        name.partition("=")[0] for stage in stages().values() for line in stage.of("ARG") for name in line.split()[:1]
    }
    for service in SERVICES.values():
        assert set(service.get("build", {}).get("args", [])) <= arguments


def _one_shot(service: dict[str, Any]) -> bool:
    return service["restart"] == "no"


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_restarts_is_watched_and_limited(name: str) -> None:
    service = SERVICES[name]
    assert service["restart"] in ("no", "unless-stopped")
    assert _one_shot(service) == (service["healthcheck"].get("disable") is True)
    assert service["deploy"]["resources"]["limits"].keys() == {"cpus", "memory"}
    assert "no-new-privileges:true" in service["security_opt"]


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_waits_for_what_it_needs(name: str) -> None:
    for needed, how in SERVICES[name].get("depends_on", {}).items():
        finished = _one_shot(SERVICES[needed])
        assert how["condition"] == ("service_completed_successfully" if finished else "service_healthy")


def test_data_services_are_out_of_reach() -> None:
    assert compose()["networks"]["data"] == {"internal": True}
    for name in ("postgres", "object-store", "redis"):
        assert SERVICES[name]["networks"] == ["data"]
        assert "ports" not in SERVICES[name]
    published = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_volumes_and_networks_are_declared() -> None:
    mounts = [mount.split(":")[0] for service in SERVICES.values() for mount in service.get("volumes", [])]
    assert {mount for mount in mounts if not mount.startswith(".")} == compose()["volumes"].keys()
    assert {each for service in SERVICES.values() for each in service["networks"]} == compose()["networks"].keys()
    # Folders that the engine would make, as root's, where they are missing; `make compose-env` makes data.
    assert all((REPOSITORY / mount).exists() for mount in mounts if mount.startswith("./") and mount != "./data")


def test_airflow_knows_every_option_that_is_set() -> None:
    """A misspelt one would be passed over in silence."""
    settings = {name for service in SERVICES.values() for name in service.get("environment", {})}
    settings |= {word.partition("=")[0] for env in stages()["airflow-runtime"].of("ENV") for word in env.split()}
    for setting in settings:
        if match := re.fullmatch(r"AIRFLOW__(\w+?)__(\w+)", setting):
            section, option = match[1].lower(), match[2].lower()
            assert section == "mlops" or option in airflow_options()[section], setting


def test_the_scheduler_finds_the_runtimes_and_the_servers(airflow_environment: dict[str, str]) -> None:
    """Read by the provider itself: a misspelt option of [mlops] would leave a default of a checkout."""
    image = dict(
        word.split("=", 1)
        for stage in lineage("local")
        for env in stage.of("ENV")
        for word in env.split()
        if "=" in word
    )
    given = {
        name: value
        for name, value in {**image, **SERVICES["scheduler"]["environment"]}.items()
        if name.startswith("AIRFLOW__MLOPS__")
    }
    code = (
        "import json; from mlops_provider.deployment import Deployment as D; d = D.load();"
        "print(json.dumps([d.store, d.tracking_uri, {k: str(v) for k, v in d.pythons.items()}]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=airflow_environment | given, capture_output=True, text=True, check=True
    )
    store, tracking_uri, pythons = json.loads(done.stdout.splitlines()[-1])
    assert store.startswith(f"s3://{SERVICES['object-store']['environment']['S3_BUCKET']}/")
    assert tracking_uri == "http://mlflow:5000"
    # Where the image has them.
    copied = {words[1] for copy in stages()["local"].of("COPY") if (words := copy.split()[1:])}
    assert set(pythons.values()) == {"/opt/training/bin/python", "/opt/validation/bin/python"}
    assert {python.removesuffix("/bin/python") for python in pythons.values()} <= copied


def test_who_starts_steps_has_the_logins_that_are_made() -> None:
    """Broken: the steps are refused by MLflow, or a container that asks it nothing could change models."""
    made = {name: value for name, value in SERVICES["mlflow-logins"]["environment"].items() if "CONN_MLFLOW" in name}
    assert len(made) == 3
    for name, service in SERVICES.items():
        has = {key: value for key, value in service.get("environment", {}).items() if "CONN_MLFLOW" in key}
        assert has == (made if name in ("scheduler", "triggerer", "mlflow-logins") else {}), name
    logins = {value for key, value in SERVICES["scheduler"]["environment"].items() if key.endswith("_LOGIN")}
    assert {f"AIRFLOW_CONN_{login.upper()}" for login in logins} == made.keys()
    admin = SERVICES["mlflow"]["environment"]["MLFLOW_AUTH_ADMIN_PASSWORD"]
    assert SERVICES["mlflow-logins"]["environment"]["MLFLOW_TRACKING_PASSWORD"] == admin


def test_mlflow_is_started_as_by_make_up() -> None:
    """Broken: rights that the tests hold against `make up` would not hold in containers."""
    command = SERVICES["mlflow"]["command"]
    script = (REPOSITORY / command[1].removeprefix("/opt/mlops/")).read_text()
    assert LOGIN_SETTINGS.format(database="$database") in script
    assert "--app-name=basic-auth" in script


@pytest.fixture(scope="module")
def databases() -> Iterator[dict[str, str]]:
    """The databases as the postgres image makes them; environment for psql, with nobody's password."""
    programs = max(Path("/usr/lib/postgresql").glob("*/bin"))
    with services.postgres_server() as uri:
        server = urlsplit(uri)
        clients = {"PATH": f"{programs}:/usr/bin:/bin", "PGHOST": str(server.hostname), "PGPORT": str(server.port)}
        subprocess.run(
            ["sh", REPOSITORY / "include/compose/databases.sh"],
            env=clients
            | {"POSTGRES_USER": "trainer", "PGPASSWORD": "s3cret/word"}
            | {"AIRFLOW_DB_PASSWORD": "of-airflow", "MLFLOW_DB_PASSWORD": "it's mlflow"},
            check=True,
            capture_output=True,
        )
        yield clients


@pytest.mark.server
@pytest.mark.parametrize(
    ("role", "password", "database", "works"),
    [
        pytest.param("airflow", "of-airflow", "airflow", True, id="airflow"),
        pytest.param("mlflow", "it's mlflow", "mlflow", True, id="mlflow"),
        pytest.param("mlflow", "it's mlflow", "airflow", False, id="no-other-database"),
        pytest.param("airflow", "wrong", "airflow", False, id="no-other-password"),
    ],
)
def test_each_role_has_its_own_database(
    databases: dict[str, str], role: str, password: str, database: str, works: bool
) -> None:
    # Whoever is shut out cannot even look.
    query = "CREATE TABLE mine (id int)" if works else "SELECT 1"
    command = ["psql", "-U", role, "-d", database, "-c", query]
    done = subprocess.run(command, env=databases | {"PGPASSWORD": password}, capture_output=True, check=False)
    assert (done.returncode == 0) is works
