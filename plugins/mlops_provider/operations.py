"""``mlops keys``, ``logins`` and ``gc``: what those do in a terminal who run a deployment."""

from __future__ import annotations

import argparse
import os
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from mlops.contract.section import SpecError
from mlops.contract.step import TRACKING_VARIABLES
from mlops.signing.keys import (
    UnusableKeyError,
    is_in_service,
    key_id,
    load_key,
    load_public_keys,
    make_key,
    of_person,
    public_file,
)
from mlops_provider.connections import login_of
from mlops_provider.deployment import LOGINS, Deployment, all_teams
from mlops_provider.handed_over import airflow_of, aside, print_json
from mlops_provider.logins import Login, LoginsError, make_logins


def keys(options: argparse.Namespace, console: Console) -> int:
    if options.action == "new":
        if is_in_service(options.key):
            raise UnusableKeyError(
                f"{options.key}: make the key in its service, of the kind ECC_NIST_P256 for signing, and then see "
                "`mlops keys show`"
            )
        if (file := Path(options.key)).exists():
            raise UnusableKeyError(f"{file} exists already: a lost key cannot be made again, so none is replaced")
        make_key(file, person=options.person)
    public = load_key(options.key).public
    line = of_person(public) if options.person or _is_told_of_a_person(options.key, public) else public
    console.print(f"{line}  # key {key_id(public)}", markup=False, soft_wrap=True)
    return 0


def _is_told_of_a_person(key: str, public: str) -> bool:
    """Whether the file beside a key says that a person has it."""
    file = None if is_in_service(key) else public_file(Path(key))
    return file is not None and file.exists() and of_person(public) in load_public_keys(file)


def logins(options: argparse.Namespace, console: Console) -> int:
    admin = Login(os.environ.get(TRACKING_VARIABLES[0], ""), os.environ.get(TRACKING_VARIABLES[1], ""))
    found, left_out = [Deployment.load(None)], False
    for team in all_teams():
        try:
            found.append(Deployment.load(team))
        except SpecError as error:  # the others' users are made all the same
            console.print(f"left out team {team}: {error}", markup=False)
            left_out = True
    if not any(deployment.logins for deployment in found):
        options_of = ", ".join(f"{purpose}_login" for purpose in LOGINS)
        raise LoginsError(f"[mlops] names no connection with a user of MLflow: set {options_of}")
    for deployment in found:
        if deployment.tracking_uri != found[0].tracking_uri:
            console.print(f"left out {deployment.tracking_uri} of team {deployment.tenant.name}: it has another MLflow")
            continue
        asked = {purpose: login_of(purpose, deployment) for purpose in deployment.logins}
        users = {purpose: login for purpose, login in asked.items() if login is not None}
        for done in make_logins(deployment.tracking_uri, admin, users):
            console.print(done, markup=False)
    return int(left_out)


def gc(options: argparse.Namespace, console: Console) -> int:
    # What it needs of Kubernetes takes seconds to import.
    from mlops_provider.launchers.kubernetes.manifests import deployment_id
    from mlops_provider.orphans import find_orphans, remove_orphans

    out = aside() if options.json else None
    deployment = Deployment.load(options.team)
    where = deployment.kubernetes_connection, deployment.kubernetes_namespace
    orphans = find_orphans(*where, deployment_id(deployment.store), airflow_of(options))
    if options.delete and orphans:
        remove_orphans(*where, orphans)
    if out is not None:
        print_json([asdict(orphan) | {"is_removed": options.delete} for orphan in orphans], out)
        return 0
    table = Table("job", "created", "task", "why")
    for orphan in orphans:
        table.add_row(orphan.job, orphan.created, orphan.task, orphan.why)
    if not orphans:
        console.print(f"no orphaned Jobs in namespace {deployment.kubernetes_namespace}")
        return 0
    console.print(table)
    console.print(f"removed {len(orphans)}" if options.delete else "to remove them: mlops gc --delete")
    return 0
