"""The provider deployed both ways: as a wheel, and as the plugins folder."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]

LOADED = """
import json, logging
logging.disable(logging.CRITICAL)
from importlib.metadata import entry_points
from airflow import plugins_manager
from airflow.providers_manager import ProvidersManager
plugins = plugins_manager.get_plugin_info(["name"])
print(json.dumps({
    "plugins": [plugin["name"] for plugin in plugins if plugin["name"] == "mlops"],
    "errors": plugins_manager.get_import_errors(),
    "apps": [app["url_prefix"] for app in plugins_manager.get_fastapi_plugins()[0]],
    "provider": "airflow-provider-mlops" in ProvidersManager().providers,
    "entry_points": [
        group for group in ("airflow.plugins", "apache_airflow_provider", "console_scripts")
        if any(point.value.startswith("mlops_provider") for point in entry_points(group=group))
    ],
}))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    uv = REPOSITORY / ".venv/uv/bin/uv"
    subprocess.run([uv, "build", "--quiet", "--wheel", "--out-dir", folder, REPOSITORY], check=True)
    return next(folder.glob("*.whl"))


def loaded(environment: dict[str, str]) -> dict[str, object]:
    done = subprocess.run([sys.executable, "-c", LOADED], env=environment, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def test_wheel_registers_provider_and_plugin(wheel: Path, tmp_path: Path, airflow_environment: dict[str, str]) -> None:
    site = tmp_path / "site"
    uv = REPOSITORY / ".venv/uv/bin/uv"
    subprocess.run([uv, "pip", "install", "--quiet", "--no-deps", "--target", site, wheel], check=True)
    plugins = tmp_path / "no_plugins"
    plugins.mkdir()
    found = loaded(airflow_environment | {"PYTHONPATH": str(site), "AIRFLOW__CORE__PLUGINS_FOLDER": str(plugins)})
    assert found == {
        "plugins": ["mlops"],
        "errors": {},
        "apps": ["/mlops/api/v1", "/mlops"],
        "provider": True,
        "entry_points": ["airflow.plugins", "apache_airflow_provider", "console_scripts"],
    }


def test_folder_beside_the_wheel_registers_the_plugin_once(
    wheel: Path, tmp_path: Path, airflow_environment: dict[str, str]
) -> None:
    """A second plugin of that name would make Airflow drop the rest of the batch."""
    site = tmp_path / "site"
    uv = REPOSITORY / ".venv/uv/bin/uv"
    subprocess.run([uv, "pip", "install", "--quiet", "--no-deps", "--target", site, wheel], check=True)
    found = loaded(airflow_environment | {"PYTHONPATH": str(site)})
    assert (found["plugins"], found["errors"]) == (["mlops"], {})


def test_folder_alone_registers_the_plugin(airflow_environment: dict[str, str]) -> None:
    found = loaded(airflow_environment | {"PYTHONPATH": ""})
    assert (found["plugins"], found["errors"], found["apps"]) == (["mlops"], {}, ["/mlops/api/v1", "/mlops"])


def test_wheel_holds_both_runtimes_code_and_the_report_templates(wheel: Path) -> None:
    """Steps run from the same wheel, installed without dependencies in their own environments."""
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {
        "mlops_provider/factory.py",
        "mlops/contract/step.py",
        "mlops/steps/__main__.py",
        "mlops/requirements.txt",
    } <= names
    assert {"mlops/validation/report.html.j2", "mlops/evaluation/report.html.j2"} <= names
    assert not [name for name in names if name.startswith(("tests", "include", "dags"))]
