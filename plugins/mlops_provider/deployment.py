"""
Where this deployment, or one of the teams that share it, keeps things.

The ``[mlops]`` section of Airflow's configuration and the teams' file are read here, and nowhere else.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import get_args

from airflow.sdk.configuration import conf

from mlops.contract.section import SpecError
from mlops.signing.keys import UnusableKeyError, is_in_service, public_file
from mlops_provider.launcher_names import LAUNCHERS
from mlops_provider.logins import WORKSPACE
from mlops_provider.team_spec import LOGINS as LOGIN_KEYS
from mlops_provider.team_spec import (
    ExperimentCode,
    Team,
    Tenant,
    TenantError,
    inside,
    owner_of_name,
    read_teams,
    tenant_named,
)

SECTION = "mlops"
RUNTIMES = ("training", "validation")
LOGINS = ("steps", "release", "reader")
"""What the logins at MLflow are for, see :mod:`mlops_provider.logins`."""
_UNITS = {"s": timedelta(seconds=1), "m": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Deployment:
    """
    Each field is an option of ``[mlops]``, or the variable ``AIRFLOW__MLOPS__<OPTION>``; of a team, what the teams'
    file says.

    The defaults fit a checkout of the project, where ``plugins/`` is Airflow's plugins folder.
    """

    home: Path
    """Folder that holds ``include/`` and ``training/``."""
    store: str
    """URI of the object store's root: ``file:///folder`` or ``s3://bucket/prefix``."""
    tracking_uri: str
    """MLflow server, as the steps reach it."""
    tracking_url: str
    """MLflow server, as people's browsers reach it."""
    pythons: Mapping[str, Path]
    """Interpreter of each runtime, for the process launcher."""
    launcher: str = "process"
    """``process``, ``pod`` or another package's launcher, for steps that do not say."""
    images: Mapping[str, str] = field(default_factory=dict)
    """Image of each runtime, for the pod launcher."""
    kubernetes_connection: str | None = None
    """Airflow connection id; None: the cluster that Airflow runs in, else the user's kubeconfig."""
    kubernetes_namespace: str = "default"
    release_key: str | None = None
    """
    What signs release decisions: a file that Airflow's user only may read, or the URI of a key in a service; None: no
    approval can be given.
    """
    release_public_keys: Path | None = None
    """Trusted keys, see ``load_public_keys``; None: the one beside the file of the private key."""
    anchor_bucket: str | None = None
    """S3 bucket with Object Lock where the newest entry of each audit trail is kept too, beside Airflow's variables."""
    logins: Mapping[str, str] = field(default_factory=dict)
    """Airflow connections with user and password at MLflow, by what they are for; empty: it has no login of its own."""
    pod_defaults: Path | None = None
    """File with the platform's settings of pods, as a pipeline's ``pods``."""
    warm_runtimes: bool = True
    """Whether the process launcher forks steps from a process that has the libraries of their runtime imported."""
    warm_idle_seconds: float = 600.0
    """Such a process ends when no step ran for so long."""
    experiment_sources: Sequence[str] = ()
    """Folders and prefixes that an experiment in Airflow may read in place of its pipeline's own: whoever may start one
    names them, and they are read with the rights of the deployment."""
    experiment_code: ExperimentCode = "never"
    """Whether whoever may start an experiment in Airflow may send code with it, and where that may run: in ``pods``; or
    ``always``, also as a user of Airflow's machine, who can read what steps that promote are given there."""
    infrastructure_patience: timedelta = timedelta(hours=6)
    """How long a try of a task waits for MLflow, the store or the Kubernetes API, in all; 0 turns it off."""

    tenant: Tenant = field(default_factory=Tenant)
    """Whose deployment this is."""
    store_connection: str | None = None
    """Airflow connection with the credentials of the store; None: those of the machine."""
    workspace: str | None = None
    """In MLflow."""
    run_as_user: str | None = None
    """Whom the process launcher runs steps as; None: Airflow's own user."""

    @property
    def public_keys_file(self) -> Path | None:
        """Where the public keys are that release decisions and audit trails are checked with."""
        if self.release_public_keys is not None:
            return self.release_public_keys
        key = self.release_key
        return None if key is None or is_in_service(key) else public_file(Path(key))

    def why_not_code(self, launcher: str | None) -> str | None:
        """
        Return why no code may be sent with an experiment, and what would do; None where it may.

        :param launcher: of the pipeline's steps; None: the deployment's
        """
        of_whom = (
            "[mlops] experiment_code" if self.tenant.team is None else f"experiment_code of team {self.tenant.name!r}"
        )
        match self.experiment_code:
            case "always":
                return None
            case "never":
                return (
                    f"no code may be sent with experiments here ({of_whom} is never); leave it out, or run it on your "
                    "machine by mlops run"
                )
        if (name := launcher or self.launcher) == "pod":
            return None
        return (
            f"code that is sent runs in pods only ({of_whom} is pods), and this pipeline's steps run by the launcher "
            f"{name!r}; on your machine mlops run runs it"
        )

    @classmethod
    def load(cls, team: str | None = None, file: str | Path | None = None) -> Deployment:
        """
        The deployment as a team has it.

        :param team: None: the deployment's own area
        :param file: that names the team, where it is one of a pipeline or a DAG
        :raises TenantError: where there is no such team, or the file may not name it
        :raises SpecError: naming the option whose value is none
        """
        tenant, own = tenant_of(team, file), cls._own()
        return replace(own, tenant=tenant) if tenant.team is None else own._of_team(tenant, tenant.team)

    @classmethod
    def _own(cls) -> Deployment:
        home = project_home()
        defaults = conf.get(SECTION, "pod_defaults", fallback="") or None
        key = conf.get(SECTION, "release_key", fallback="")
        public_keys = conf.get(SECTION, "release_public_keys", fallback="")
        launcher = conf.get(SECTION, "launcher", fallback="process")
        try:
            LAUNCHERS.import_path(launcher)
        except SpecError as error:
            raise SpecError(f"[{SECTION}] {error}") from None
        tracking_uri = conf.get(SECTION, "tracking_uri", fallback="http://127.0.0.1:5000").rstrip("/")
        return cls(
            home=home,
            store=conf.get(SECTION, "store", fallback=f"file://{home}/.local/store"),
            tracking_uri=tracking_uri,
            tracking_url=conf.get(SECTION, "tracking_url", fallback=tracking_uri).rstrip("/"),
            pythons={
                runtime: Path(
                    conf.get(SECTION, f"{runtime}_python", fallback=str(home / f".venv/{runtime}/bin/python"))
                )
                for runtime in RUNTIMES
            },
            launcher=launcher,
            images={
                runtime: image for runtime in RUNTIMES if (image := conf.get(SECTION, f"{runtime}_image", fallback=""))
            },
            kubernetes_connection=conf.get(SECTION, "kubernetes_connection", fallback="") or None,
            kubernetes_namespace=conf.get(SECTION, "kubernetes_namespace", fallback="default"),
            release_key=_key(home, key),
            release_public_keys=home / public_keys if public_keys else None,
            anchor_bucket=_bucket(),
            logins={
                login: connection
                for login in LOGINS
                if (connection := conf.get(SECTION, f"{login}_login", fallback=""))
            },
            pod_defaults=home / defaults if defaults else None,
            experiment_sources=conf.get(SECTION, "experiment_sources", fallback="").split(),
            experiment_code=_experiment_code(conf.get(SECTION, "experiment_code", fallback="never")),
            infrastructure_patience=_duration(conf.get(SECTION, "infrastructure_patience", fallback="6h")),
            warm_runtimes=conf.getboolean(SECTION, "warm_runtimes", fallback=True),
            warm_idle_seconds=conf.getfloat(SECTION, "warm_idle_seconds", fallback=600.0),
        )

    def _of_team(self, tenant: Tenant, team: Team) -> Deployment:
        if inside(team.store, self.store) or inside(self.store, team.store):
            raise SpecError(
                f"[{SECTION}] teams_file: the store of team {tenant.name!r}, {team.store}, and the deployment's own, "
                f"{self.store}, are not apart: choose a bucket or a prefix beside it"
            )
        logins = {key.removesuffix("_login"): getattr(team, key) for key in LOGIN_KEYS}
        if team.tracking_uri is not None:
            tracking_uri = team.tracking_uri.rstrip("/")
            tracking_url = (team.tracking_url or tracking_uri).rstrip("/")
        else:
            tracking_uri, tracking_url = self.tracking_uri, self.tracking_url
        made = replace(
            self,
            tenant=tenant,
            store=team.store,
            store_connection=team.store_connection,
            tracking_uri=tracking_uri,
            tracking_url=tracking_url,
            workspace=team.workspace,
            logins={purpose: connection for purpose, connection in logins.items() if connection},
            kubernetes_namespace=team.kubernetes_namespace or "",
            release_key=_key(self.home, team.release_key),
            release_public_keys=self.home / team.release_public_keys if team.release_public_keys else None,
            run_as_user=team.run_as_user,
            experiment_sources=team.experiment_sources,
            experiment_code=team.experiment_code,
        )
        if shared := list(self._in_common(made, team)):
            raise SpecError(
                "\n".join(
                    f"[{SECTION}] teams_file: teams.{tenant.name}.{key} is {value!r}, which is the deployment's own "
                    f"([{SECTION}] {option}): give the team one of its own, or remove it"
                    for key, value, option in shared
                )
            )
        return made

    def _in_common(self, made: Deployment, team: Team) -> Iterator[tuple[str, str, str]]:
        """
        Iterate over what a team has of the deployment's own and must not: its key, the value, our option.

        :param made: the deployment as the team has it
        """
        if made.kubernetes_namespace and made.kubernetes_namespace == self.kubernetes_namespace:
            yield "kubernetes_namespace", self.kubernetes_namespace, "kubernetes_namespace"
        if made.release_key is not None and made.release_key == self.release_key:
            yield "release_key", str(team.release_key), "release_key"
        # A workspace of the deployment's MLflow is a team's own, unless it is the one that we are in.
        if made.tracking_uri == self.tracking_uri and made.workspace in (None, WORKSPACE):
            key = "tracking_uri" if made.workspace is None else "workspace"
            yield key, made.workspace or made.tracking_uri, "tracking_uri"
        own, theirs = _named_logins(self), {"store_connection": made.store_connection, **_named_logins(made)}
        if self.kubernetes_connection is not None:
            own["kubernetes_connection"] = self.kubernetes_connection
        for option, connection in own.items():
            for key, named in theirs.items():
                if named == connection:
                    yield key, connection, option
            # Code of the team's recipes gets what is in them.
            if connection in team.allowed_connections:
                yield "allowed_connections", connection, option


def _named_logins(deployment: Deployment) -> dict[str, str]:
    """Connections at MLflow, by the keys that name them."""
    return {f"{purpose}_login": connection for purpose, connection in deployment.logins.items()}


def tenant_of(team: str | None, file: str | Path | None = None) -> Tenant:
    """
    :param file: that names the team
    :raises TenantError: where there is no such team, or the file may not name it
    """
    teams = all_teams()
    return tenant_named(teams, team, None if file is None else owner_of_file(teams, Path(file)))


def tenant_of_name(name: str) -> str | None:
    """The team that a pipeline or a model belongs to, by its name; None: the deployment's own."""
    return owner_of_name(all_teams(), name)


def all_teams() -> Mapping[str, Team]:
    """:raises SpecError: where the teams' file is wrong"""
    file = conf.get(SECTION, "teams_file", fallback="")
    if not file:
        return {}
    path = project_home() / file
    try:
        found = path.stat()
    except OSError as error:
        raise SpecError(f"[{SECTION}] teams_file: {error}") from error
    return _read_teams(path, found.st_mtime_ns, found.st_size, conf.getboolean("core", "multi_team", fallback=False))


@functools.lru_cache(maxsize=4)
def _read_teams(path: Path, modified: int, size: int, multi_team: bool) -> Mapping[str, Team]:
    """Anew where the file has changed: each operator of each pipeline asks."""
    teams = read_teams(path)
    for name, team in teams.items():
        if multi_team and team.dags:
            raise SpecError(
                f"{path.name}: teams.{name}.dags: the team of a file is its bundle's, for [core] multi_team is on: "
                "remove it, and give the bundle a team_name in [dag_processor] dag_bundle_config_list"
            )
        if not multi_team and not team.dags:
            raise SpecError(f"{path.name}: teams.{name}.dags: name the folders of its pipelines, such as [{name}]")
    return teams


def owner_of_file(teams: Mapping[str, Team], file: Path) -> str | None:
    """
    The team whose folder, or whose bundle, a file lies in; None: the deployment's own.

    :raises TenantError: where it is a link from one team's folder into another one's
    """
    if not teams:
        return None
    # A link is the team's where it lies, and where it leads to: neither makes it the deployment's own.
    owners = {
        team
        for place in {os.path.abspath(file), os.path.realpath(file)}
        for team, folder in _folders(teams)
        if inside(place, os.path.abspath(folder)) or inside(place, os.path.realpath(folder))
    }
    if len(owners) > 1:
        raise TenantError(f"{file} is of several teams, {' and '.join(sorted(owners))}: a link between their folders")
    return next(iter(owners), None)


def _folders(teams: Mapping[str, Team]) -> Iterator[tuple[str, Path]]:
    if not conf.getboolean("core", "multi_team", fallback=False):
        root = Path(conf.get("core", "dags_folder"))
        yield from ((name, root / folder) for name, team in teams.items() for folder in team.dags)
        return
    from airflow.dag_processing.bundles.base import get_bundle_base_folder

    for bundle in conf.getjson("dag_processor", "dag_bundle_config_list", fallback=[]):
        if (team := bundle.get("team_name")) is not None:
            local = (bundle.get("kwargs") or {}).get("path")
            if local is None and bundle["classpath"].endswith(".LocalDagBundle"):
                local = conf.get("core", "dags_folder")
            yield team, Path(local) if local else get_bundle_base_folder(bundle["name"])


def project_home() -> Path:
    """Return the folder that holds ``include/`` and ``training/``."""
    return Path(conf.get(SECTION, "home", fallback=str(Path(__file__).resolve().parents[2]))).resolve()


def _bucket() -> str | None:
    uri: str = conf.get(SECTION, "anchor_bucket", fallback="")
    if uri and re.fullmatch(r"s3://[^/]+(/.*)?", uri) is None:
        raise SpecError(f"[{SECTION}] anchor_bucket is {uri!r}; it must be s3://BUCKET or s3://BUCKET/PREFIX")
    return uri or None


def _key(home: Path, named: str | None) -> str | None:
    """:param named: a file, relative to the project folder, or the URI of a key in a service"""
    if not named:
        return None
    try:
        return named if is_in_service(named) else str(home / named)
    except UnusableKeyError as error:
        raise SpecError(f"[{SECTION}] release_key: {error}") from error


def _experiment_code(text: str) -> ExperimentCode:
    known: tuple[ExperimentCode, ...] = get_args(ExperimentCode)
    for each in known:
        if text.strip() == each:
            return each
    raise SpecError(f"[{SECTION}] experiment_code is {text!r}; it must be {', '.join(known[:-1])} or {known[-1]}")


def _duration(text: str) -> timedelta:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhd])", text.strip())
    if found is None:
        raise SpecError(
            f"[{SECTION}] infrastructure_patience is {text!r}; it must be a number of s, m, h or d, such as 6h"
        )
    return float(found[1]) * _UNITS[found[2]]
