"""
The teams that share a deployment: what each of them has of its own, and what of it a pipeline may name.

The file that ``[mlops] teams_file`` names belongs to whoever runs the deployment. Without it there are no teams, and
everything is everybody's.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import unquote

from pydantic import Field, StringConstraints

from mlops.contract.section import (
    FOLDER_PATTERN,
    PREFIX_PATTERN,
    STORE_PATTERN,
    TEAM_PATTERN,
    URL_PATTERN,
    USER_PATTERN,
    ObjectName,
    Section,
    SpecError,
    Text,
)
from mlops.signing.keys import UnusableKeyError, is_in_service
from mlops_provider.launcher_names import LAUNCHERS
from mlops_provider.notifier_names import NOTIFIERS
from mlops_provider.section_file import KeyPath, read_section

TeamName = Annotated[str, StringConstraints(pattern=TEAM_PATTERN)]
"""As Airflow's own teams are called."""
Folder = Annotated[str, StringConstraints(pattern=FOLDER_PATTERN)]
Prefix = Annotated[str, StringConstraints(pattern=PREFIX_PATTERN)]
StoreUri = Annotated[str, StringConstraints(pattern=STORE_PATTERN)]
Url = Annotated[str, StringConstraints(pattern=URL_PATTERN)]
User = Annotated[str, StringConstraints(pattern=USER_PATTERN)]
ExperimentCode = Literal["never", "pods", "always"]

LOGINS = ("steps_login", "release_login", "reader_login")
RESERVED_LABELS = ("mlops/", "kueue.x-k8s.io/", "batch.kubernetes.io/", "app.kubernetes.io/")
"""Begin the labels of pods that open the network, or name a queue."""


class TenantError(SpecError):
    """A team is named that there is not, or that may not be named there."""


class Team(Section):
    """What one team has. Nothing of it is the deployment's where it is left out: a team without a login has none."""

    dags: list[Folder] = []
    """Folders below the DAGs folder. What lies there is the team's, and nothing else may be. Left out where Airflow's
    own ``[core] multi_team`` is on: there the team of a file is its bundle's."""
    names: Prefix
    """Begins the names of its pipelines, which are those of its datasets and experiments, and of its models."""
    store: StoreUri
    """The team's own object store: a bucket, or a prefix that holds no other team's."""
    store_connection: Text | None = None
    """Airflow connection of type ``aws`` with the credentials of the store. None: those of the machine or the pod."""
    tracking_uri: Url | None = None
    """The team's own MLflow server, as the steps reach it. None: the deployment's, with a ``workspace``."""
    tracking_url: Url | None = None
    """The same, as browsers reach it."""
    workspace: ObjectName | None = None
    """The team's workspace in MLflow; needs logins that have rights in no other one."""
    steps_login: Text | None = None
    """Airflow connection with user and password at MLflow, of the steps that train and evaluate."""
    release_login: Text | None = None
    """Login of the steps that register and promote."""
    reader_login: Text | None = None
    """Login of Airflow's look-ups."""
    allowed_connections: list[Text] = []
    """Airflow connections that its pipelines may name: what they hold is handed to code of its recipes."""
    experiment_sources: list[Text] = []
    """Folders and prefixes that experiments in Airflow may read in place of what its pipelines read, such as
    ``s3://data/search/``."""
    experiment_code: ExperimentCode = "never"
    """Whether experiments in Airflow may be sent with code, and where it may run; as ``[mlops] experiment_code``."""
    kubernetes_namespace: ObjectName | None = None
    """Namespace of the team's pods, and of nobody else's. None: it has no pods."""
    service_account: ObjectName | None = None
    """Service account of the team's pods; None: the namespace's default."""
    allowed_secrets: list[ObjectName] = []
    """Kubernetes Secrets that its pods may mount, or pull images with."""
    queue: ObjectName | None = None
    """Kueue's LocalQueue of its pods, which holds its quota."""
    pool: Text | None = None
    """Airflow pool of its tasks: as many run at once as it has slots."""
    worker_queue: Text | None = None
    """Airflow queue of its tasks, where workers of its own take them."""
    approvers: list[Text] = []
    """Names or ids of users who may approve its versions, and roll back; a rollback knows them by name only."""
    release_key: Text | None = None
    """
    What signs its decisions: a file with a private key, relative to the project folder, or the URI of a key in a key
    management service. None: no approval can be given.
    """
    release_public_keys: Text | None = None
    """Public keys that are trusted for its models; None: the one beside the file of the private key."""
    launchers: list[Text] = []
    """Launchers of other packages by which the team's steps may run: their code runs as Airflow's user."""
    notifiers: list[Text] = []
    """Notifiers beside ``smtp`` and ``webhook`` by which the team's pipelines may tell people. Their settings are not
    known here: one that reads a file or a connection that its settings name, reads whichever the team gives."""
    run_as_user: User | None = None
    """User of the operating system whom its steps run as, with ``launcher: process``. None: Airflow's own, who can read
    all that Airflow can."""


class Teams(Section):
    """The file of the teams."""

    teams: dict[TeamName, Team] = Field(min_length=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Tenant:
    """Whose a pipeline is, and what it may name. The methods give the reason against it, or None."""

    name: str | None = None
    """None: nobody's but the deployment's."""
    teams: Mapping[str, Team] = field(default_factory=dict)
    """All of them."""

    @property
    def team(self) -> Team | None:
        return None if self.name is None else self.teams[self.name]

    def why_not_name(self, name: str) -> str | None:
        """Say why a pipeline, dataset, experiment or model may not have this name; None where it may."""
        if (owner := owner_of_name(self.teams, name)) == self.name:
            return None
        if self.team is not None:
            whose = "" if owner is None else f"; it is one of team {owner!r}"
            return f"{name!r} is no name of team {self.name!r}, whose names begin with {self.team.names!r}{whose}"
        assert owner is not None, "there is no team, so its name is None"
        return (
            f"{name!r} is a name of team {owner!r}, whose names begin with {self.teams[owner].names!r}: "
            f"add team: {owner}, or choose another name"
        )

    def why_not_text(self, text: str) -> str | None:
        """
        Say why a setting may not hold this text, which Airflow renders; None where it may: ``{{ conn.any.password }}``
        would be another team's password.
        """
        if self.team is None or not any(mark in text for mark in ("{{", "{%", "{#")):
            return None
        return f"a template can read every connection of Airflow, so a team's pipeline has none, got {text!r}"

    def why_not_connection(self, connection: str) -> str | None:
        if self.team is None or connection in self.team.allowed_connections:
            return None
        return _not_among("Airflow connection", connection, self.team.allowed_connections, self.name)

    def why_not_approver(self, approver: str) -> str | None:
        if self.team is None or approver in self.team.approvers:
            return None
        return _not_among("approver", approver, self.team.approvers, self.name)

    def why_not_launcher(self, name: str | None) -> str | None:
        """Say why a task may not run by this launcher; None where it may."""
        if self.team is None or name in (None, *LAUNCHERS.builtin, *self.team.launchers):
            return None
        return _not_among("launcher", str(name), [*LAUNCHERS.builtin, *self.team.launchers], self.name)

    def why_not_notifier(self, name: str) -> str | None:
        """Say why people may not be told by this notifier; None where they may."""
        if self.team is None or name in (*NOTIFIERS.builtin, *self.team.notifiers):
            return None
        return _not_among("notifier", name, [*NOTIFIERS.builtin, *self.team.notifiers], self.name)

    def why_not_pods(self, pods: Mapping[str, Any]) -> Iterator[tuple[KeyPath, str]]:
        """:param pods: settings that the pipeline gives"""
        team = self.team
        if team is None:
            return
        for key in ("env_from_secrets", "image_pull_secrets"):
            for number, secret in enumerate(pods.get(key) or []):
                if secret not in team.allowed_secrets:
                    yield (key, str(number)), _not_among("Secret", secret, team.allowed_secrets, self.name)
        for number, volume in enumerate(pods.get("volumes") or []):
            place = ("volumes", str(number))
            if (secret := volume.get("secret")) is not None and secret not in team.allowed_secrets:
                yield (*place, "secret"), _not_among("Secret", secret, team.allowed_secrets, self.name)
            if volume.get("host_path") is not None:
                yield (*place, "host_path"), "a folder of the node is no team's; use a claim"
        for key in ("service_account", "queue"):
            given, own = pods.get(key), getattr(team, key)
            if given is not None and given != own:
                fix = f"the one of team {self.name!r} is {own!r}: remove it" if own else f"team {self.name!r} has none"
                yield (key,), f"got {given!r}; {fix}"
        for label in pods.get("labels") or {}:
            if label.startswith(RESERVED_LABELS):
                yield ("labels", label), f"labels that begin with {' or '.join(RESERVED_LABELS)} are the deployment's"
        if pods.get("template") is not None:
            # Whatever is in a pod's manifest goes before the settings.
            yield ("template",), "a template is the deployment's to give, in the file that [mlops] pod_defaults names"

    def slots(self) -> dict[str, str]:
        """Airflow's pool and queue of its tasks, by the operators' parameters."""
        if self.team is None:
            return {}
        given = {"pool": self.team.pool, "queue": self.team.worker_queue}
        return {name: value for name, value in given.items() if value is not None}

    def pods(self) -> dict[str, Any]:
        """Settings of all its pods."""
        if self.team is None:
            return {}
        given = {"service_account": self.team.service_account, "queue": self.team.queue}
        return {key: value for key, value in given.items() if value is not None}


def tenant_named(teams: Mapping[str, Team], name: str | None, owner: str | None) -> Tenant:
    """
    :param owner: team of the file that names it; None: the deployment's own file, which may name each of them
    :raises TenantError: where there is no such team, or the file may not name it
    """
    if name is not None and name not in teams:
        near = difflib.get_close_matches(name, teams, n=1)
        known = (
            f"known teams are {', '.join(teams)}" if teams else "[mlops] teams_file names no file, so there are none"
        )
        raise TenantError(f"unknown team {name!r}; " + (f"did you mean {near[0]!r}?" if near else known))
    if owner is not None and name is None:
        raise TenantError(f"the file is one of team {owner!r}: add team: {owner}")
    if owner is not None and name != owner:
        raise TenantError(f"the file is one of team {owner!r}, and may not name team {name!r}; write team: {owner}")
    return Tenant(name=name, teams=teams)


def owner_of_name(teams: Mapping[str, Team], name: str) -> str | None:
    """The team that a pipeline or model belongs to; None: the deployment's own."""
    return next((team for team, its in teams.items() if name.startswith(its.names)), None)


def read_teams(path: Path) -> Mapping[str, Team]:
    """
    :raises SpecError: one ``file:line:column: message`` line for each mistake, also where two teams have the same
    """
    try:
        read = read_section(Teams, path, "the file of the teams")
    except OSError as error:
        raise SpecError(f"[mlops] teams_file: {error}") from error
    teams = read.section.teams
    if (problem := read.error(_conflicts(teams))) is not None:
        raise problem
    return teams


def inside(one: str, other: str) -> bool:
    """Whether a place is another one, or below it: URIs, or folders."""
    return f"{one.rstrip('/')}/".startswith(f"{other.rstrip('/')}/")


def below(place: str, prefixes: Iterable[str]) -> bool:
    """
    Whether a place is one of these, or below it, however it is read: what reads an object store takes it for a URL, in
    which ``%2e`` is a dot, a backslash a slash, and tabs and outer spaces are nothing.
    """
    read = unquote(place)
    parts = {part.strip() for part in re.split(r"[/\\?#]", read)}
    return read.isprintable() and not {".", ".."} & parts and any(inside(place, each) for each in prefixes)


def _conflicts(teams: Mapping[str, Team]) -> Iterator[tuple[KeyPath, str]]:
    """What is wrong with a team, and what two teams have in common and must not."""
    seen: list[tuple[str, Team]] = []
    for name, team in teams.items():
        for keys, why in (*_faults(name, team), *_leaks(team, teams)):
            yield ("teams", name, *keys), why
        for other, earlier in seen:
            for keys, value in _shared(team, earlier):
                yield ("teams", name, *keys), f"{value!r} is in use by team {other!r} too: each needs one of its own"
        seen.append((name, team))


def _faults(name: str, team: Team) -> Iterator[tuple[KeyPath, str]]:
    folders = [(("dags", str(number)), folder) for number, folder in enumerate(team.dags)]
    for keys, place in ((("store",), team.store), *folders):
        if {".", ".."} & set(place.split("/")):
            yield keys, f"must be written without . and .., got {place!r}"
    try:
        is_in_service(team.release_key or "")
    except UnusableKeyError as error:
        yield ("release_key",), str(error)
    if team.run_as_user == "root":
        yield ("run_as_user",), "root can read everything: name a user of the team's own"
    if team.tracking_uri is None and team.workspace is None:
        yield (), f"team {name!r} has neither: give it a workspace of the deployment's MLflow, or a tracking_uri"
    if team.workspace is not None:
        for key in LOGINS:
            if getattr(team, key) is None:
                yield (
                    ("workspace",),
                    f"others are kept out of a workspace by logins with no rights elsewhere: add {key}",
                )


def _leaks(team: Team, teams: Mapping[str, Team]) -> Iterator[tuple[KeyPath, str]]:
    """Connections that a recipe of the team could read, and that belong to none."""
    for number, connection in enumerate(team.allowed_connections):
        for owner, its in teams.items():
            for key in ("store_connection", *LOGINS):
                if getattr(its, key) == connection:
                    what = (
                        f"{connection!r} is the {key} of team {owner!r}, which code of a recipe may not have: remove it"
                    )
                    yield ("allowed_connections", str(number)), what


def _shared(team: Team, other: Team) -> Iterator[tuple[KeyPath, str]]:
    """What two teams have in common and must not."""
    if team.names.startswith(other.names) or other.names.startswith(team.names):
        yield ("names",), team.names
    if inside(team.store, other.store) or inside(other.store, team.store):
        yield ("store",), team.store
    for number, folder in enumerate(team.dags):
        if any(inside(folder, its) or inside(its, folder) for its in other.dags):
            yield ("dags", str(number)), folder
    if (team.tracking_uri, team.workspace) == (other.tracking_uri, other.workspace):
        yield ("workspace" if team.workspace else "tracking_uri",), team.workspace or team.tracking_uri or ""
    for key in ("store_connection", *LOGINS, "kubernetes_namespace", "release_key", "run_as_user"):
        value = getattr(team, key)
        if value is not None and value == getattr(other, key):
            yield (key,), value


def _not_among(kind: str, given: str, allowed: list[str], team: str | None) -> str:
    own = f"has {', '.join(allowed)}" if allowed else "has none"
    return f"{given!r} is no {kind} of team {team!r}, which {own}"
