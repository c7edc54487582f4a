"""
The users of MLflow's own login (``mlflow server --app-name basic-auth``), and what each may do.

Code of a recipe runs in the steps that train and evaluate, so their user may neither read nor write registered models
and the files that these are made of: a replaced file of the champion would be run by whoever loads it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import httpx

from mlops.contract.step import TRACKING_VARIABLES, WORKSPACE_HEADER


class Login(NamedTuple):
    """Who one is at MLflow, and in which of its workspaces."""

    user: str
    password: str
    workspace: str | None = None
    """None: the server has none, or its default one."""

    @property
    def auth(self) -> tuple[str, str]:
        return self.user, self.password

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.workspace is None else {WORKSPACE_HEADER: self.workspace}


RIGHTS: Final[Mapping[str, Mapping[str, str]]] = {
    "steps": {
        # May make something of its own there; without it, and with workspaces, one may not.
        "workspace": "USE",
        "experiment": "EDIT",
        # Deleting: of two runs that were made for one piece of work at the same moment, one goes.
        "run": "MANAGE",
        # Who creates something may manage it, unless all of its kind is denied.
        "registered_model": "DENY",
        "registered_model_version": "DENY",
        "logged_model": "DENY",
        "prompt": "DENY",
        "prompt_version": "DENY",
        "gateway_endpoint": "DENY",
        "gateway_model_definition": "DENY",
        "gateway_secret": "DENY",
        "mcp_server": "DENY",
        "mcp_server_version": "DENY",
        "scorer": "DENY",
        "scorer_version": "DENY",
    },
    # EDIT: the files of a version are a logged model in the experiment of its training.
    "release": {"workspace": "USE", "registered_model": "MANAGE", "experiment": "EDIT"},
    "reader": {"registered_model": "READ"},
}
"""MLflow's permission for all resources of each type, by what a login is for. Everything else is not permitted."""
WORKSPACE: Final = "default"
"""MLflow's name for the only workspace of a server without workspaces."""


class LoginsError(RuntimeError):
    """The users cannot be made."""


def make_logins(
    tracking_uri: str, admin: Login, logins: Mapping[str, Login], *, trust_env: bool = True
) -> Iterator[str]:
    """
    Make the workspaces and users that are missing, set passwords that differ, and give each user the rights of its
    purpose, in its workspace alone.

    :param admin: of MLflow
    :param logins: by what they are for, see :data:`RIGHTS`
    :param trust_env: by a proxy, where the environment names one
    :return: what was done, in sentences; nothing where all is as it should be
    :raises LoginsError: where MLflow cannot be reached, has no login, or does not know that administrator
    """
    with httpx.Client(base_url=tracking_uri, auth=admin.auth, timeout=60, trust_env=trust_env) as client:
        server = _Server(client)
        for purpose, login in logins.items():
            if login.workspace is not None:
                yield from server.make_workspace(login.workspace)
            yield from server.make_user(purpose, login)
            yield from server.make_role(purpose, login)


class _Server:
    """MLflow, as its administrator asks it."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client
        self._uri = str(client.base_url).rstrip("/")

    def make_workspace(self, name: str) -> Iterator[str]:
        answer = self._send(self._client.build_request("GET", "/api/3.0/mlflow/workspaces"))
        if not answer.is_success and answer.status_code not in (401, 403):
            raise LoginsError(
                f"MLflow at {self._uri} has no workspaces, and a team is to have {name!r}: start it with "
                "--enable-workspaces, or MLFLOW_ENABLE_WORKSPACES=true"
            )
        if name not in {each["name"] for each in self._document("workspaces", answer)["workspaces"]}:
            self._change("POST", "3.0", "workspaces", name=name)
            yield f"made workspace {name!r}"

    def make_user(self, purpose: str, login: Login) -> Iterator[str]:
        user, password = login.auth
        found = next((each for each in self._get("2.0", "users/list")["users"] if each["username"] == user), None)
        if found is None:
            self._change("POST", "2.0", "users/create", username=user, password=password)
            yield f"made user {user!r}"
        elif found["is_admin"]:
            raise LoginsError(
                f"user {user!r} is an administrator of MLflow, who may do everything: name another one for {purpose!r}"
            )
        elif not self._knows(user, password):
            self._change("PATCH", "2.0", "users/update-password", username=user, password=password)
            yield f"set the password of user {user!r}"

    def make_role(self, purpose: str, login: Login) -> Iterator[str]:
        name, workspace = f"mlops-{purpose}", login.workspace or WORKSPACE
        roles = self._get("3.0", "roles/list", workspace=workspace)["roles"]
        role = next((role for role in roles if role["name"] == name), None)
        if role is None:
            role = self._change("POST", "3.0", "roles/create", name=name, workspace=workspace)["role"]
        missing = {(kind, "*"): permission for kind, permission in RIGHTS[purpose].items()}
        for grant in role["permissions"]:
            if missing.get(_place(grant)) == grant["permission"]:
                del missing[_place(grant)]
            else:
                self._change("DELETE", "3.0", "roles/permissions/remove", role_permission_id=grant["id"])
                yield f"{name}: removed {grant['permission']} of {' '.join(_place(grant))}"
        for (kind, pattern), permission in missing.items():
            grant = {"resource_type": kind, "resource_pattern": pattern, "permission": permission}
            self._change("POST", "3.0", "roles/permissions/add", role_id=role["id"], **grant)
            yield f"{name}: {permission} of {kind} {pattern}"
        assigned = self._get("3.0", "users/roles/list", username=login.user)["roles"]
        for other in assigned:
            if other["workspace"] != workspace:
                raise LoginsError(
                    f"user {login.user!r} has rights in MLflow's workspace {other['workspace']!r} too, by the role "
                    f"{other['name']}: name another user for {purpose!r} in {workspace!r}, or take that role away"
                )
        if role["id"] not in {each["id"] for each in assigned}:
            self._change("POST", "3.0", "roles/assign", username=login.user, role_id=role["id"])
            yield f"user {login.user!r} has the role {name}"

    def _knows(self, user: str, password: str) -> bool:
        request = self._client.build_request("GET", "/api/2.0/mlflow/users/current")
        return self._send(request, httpx.BasicAuth(user, password)).status_code != httpx.codes.UNAUTHORIZED

    def _get(self, version: str, path: str, **query: str) -> dict[str, Any]:
        request = self._client.build_request("GET", f"/api/{version}/mlflow/{path}", params=query)
        return self._document(path, self._send(request))

    def _change(self, method: str, version: str, path: str, **body: Any) -> dict[str, Any]:
        request = self._client.build_request(method, f"/api/{version}/mlflow/{path}", json=body)
        return self._document(path, self._send(request))

    def _send(self, request: httpx.Request, login: httpx.Auth | None = None) -> httpx.Response:
        try:
            return self._client.send(request, auth=login or self._client.auth)
        except httpx.HTTPError as error:
            raise LoginsError(f"MLflow at {self._uri} cannot be reached: {error!r}") from error

    def _document(self, path: str, answer: httpx.Response) -> dict[str, Any]:
        if answer.is_success:
            return dict(answer.json() or {}) if answer.content.strip() else {}
        if answer.status_code in (401, 403):
            raise LoginsError(
                f"MLflow at {self._uri} does not take this user and password for an administrator's "
                f"({answer.status_code}): say who is one by {' and '.join(TRACKING_VARIABLES)}"
            )
        if answer.status_code == httpx.codes.NOT_FOUND:
            raise LoginsError(f"MLflow at {self._uri} has no users: start it with --app-name basic-auth")
        # Without MLflow's own words, which may hold a password's hash.
        raise LoginsError(f"MLflow at {self._uri} does not do {path}: {answer.status_code}")


def _place(grant: Mapping[str, str]) -> tuple[str, str]:
    return grant["resource_type"], grant["resource_pattern"]
