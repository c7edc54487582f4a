"""Read a ``*.pipeline.yaml``; every mistake is reported with file, line, column, value and fix."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from mlops.contract.section import SpecError, leaves
from mlops_provider.deployment import tenant_of
from mlops_provider.notifiers.named import mistakes
from mlops_provider.notify_spec import trespasses
from mlops_provider.operator_keys import ROLLBACK
from mlops_provider.section_file import KeyPath, SectionFile, parse_section, read_section
from mlops_provider.spec import Pipeline
from mlops_provider.team_spec import Tenant, TenantError

SUFFIX = ".pipeline.yaml"


def pipeline_files(folder: Path, *, below: bool = True) -> list[Path]:
    """
    Return the pipelines' files in a folder, sorted. Hidden ones, such as an editor's lock ``.#x.pipeline.yaml``, and
    those in hidden folders are none.

    :param below: whether those in the folders below it are among them
    """
    found = folder.rglob(f"*{SUFFIX}") if below else folder.glob(f"*{SUFFIX}")
    return sorted(path for path in found if not any(part[0] == "." for part in path.relative_to(folder).parts))


def load_pipeline(path: Path, changes: Mapping[KeyPath, str] = MappingProxyType({}), option: str = "--set") -> Pipeline:
    """
    Read and check one pipeline. The file of pipeline ``x`` is named ``x.pipeline.yaml``.

    :param changes: values that take the place of the file's, as YAML
    :param option: by which they were given, for messages
    :raises SpecError: one ``file:line:column: message`` line for each mistake, also where the file cannot be read
    """
    try:
        read = read_section(Pipeline, path, "a pipeline", changes, option)
    except OSError as error:
        fix = "put a file there that Airflow's user may read, or remove it"
        raise SpecError(f"{path.name}:1:1: it cannot be read ({error.strerror or error}): {fix}") from error
    return _checked(read, path)


def why_broken(path: Path, error: Exception) -> str:
    """
    Say what is wrong with a pipeline's file, a line for each mistake.

    :param error: what reading it, or making its DAGs, has raised
    """
    said = str(error)
    is_placed = isinstance(error, SpecError) and said.startswith(f"{path.name}:")
    return said if is_placed else f"{path.name}:1:1: no pipeline can be made of it: {error!r}"


def changed_pipeline(
    text: str,
    name: str,
    changes: Mapping[KeyPath, str],
    option: str,
    fields: Mapping[KeyPath, str] = MappingProxyType({}),
) -> Pipeline:
    """
    Check a pipeline with other settings, where its file is not at hand.

    :param text: of its file, which was read from a folder that it may lie in
    :param name: of the pipeline
    :param changes: values that take the place of the file's, as YAML
    :param option: by which they were given, for messages
    :param fields: of a request, by which some of them were given instead
    :raises SpecError: one line for each mistake
    """
    file = name + SUFFIX
    return _checked(
        parse_section(Pipeline, text, file, "a pipeline", changes, option, fields), Path(file), is_at_hand=False
    )


def _checked(read: SectionFile[Pipeline], path: Path, is_at_hand: bool = True) -> Pipeline:
    pipeline = read.section
    complaints: list[tuple[KeyPath, str]] = []
    if path.name != pipeline.pipeline + SUFFIX:
        wanted = f"so its file must be called {pipeline.pipeline + SUFFIX}"
        complaints.append((("pipeline",), f"the pipeline is called {pipeline.pipeline!r}, {wanted}"))
    try:
        tenant = tenant_of(pipeline.team, path if is_at_hand else None)
    except TenantError as error:
        complaints.append((("team",), str(error)))
    else:
        complaints += _trespasses(pipeline, tenant)
        if not complaints:  # it imports the notifiers
            complaints += mistakes(pipeline.notify)
    if (error_ := read.error(complaints)) is not None:
        raise error_
    return pipeline


def located(path: Path, complaints: Iterable[tuple[KeyPath, str]]) -> list[str]:
    """
    Say where in a pipeline's file the settings stand that something is wrong with.

    :param complaints: what is wrong, with the keys that lead to the setting
    :return: ``file:line:column: complaint``
    """
    error = read_section(Pipeline, path, "a pipeline").error(complaints)
    return [] if error is None else str(error).split("\n")


def _why_not_dag(name: str, tenant: Tenant) -> str | None:
    """Say why a pipeline's DAG may not have this name; None where it may."""
    if name != f"{'' if tenant.team is None else tenant.team.names}{ROLLBACK}":
        return None
    return f"{name!r} is the DAG that takes a model back in an emergency (dags/rollback.py): choose another name"


def _trespasses(pipeline: Pipeline, tenant: Tenant) -> Iterator[tuple[KeyPath, str]]:
    """What a pipeline names that is not its team's, and where."""
    named: list[tuple[KeyPath, str | None]] = [
        (("pipeline",), tenant.why_not_name(pipeline.pipeline) or _why_not_dag(pipeline.pipeline, tenant)),
        (("evaluate", "registered_model"), tenant.why_not_name(pipeline.evaluate.registered_model)),
        (("register", "registered_model"), tenant.why_not_name(pipeline.register_.registered_model)),
        (("launcher",), tenant.why_not_launcher(pipeline.launcher)),
    ]
    if (approval := pipeline.promote.approval) is not None:
        for number, approver in enumerate(approval.approvers):
            named.append((("promote", "approval", "approvers", str(number)), tenant.why_not_approver(approver)))
    for place, pods in pipeline.pods.items():
        for keys, why in tenant.why_not_pods(pods.model_dump(mode="json", exclude_unset=True)):
            named.append((("pods", place, *keys), why))
    named += trespasses(pipeline.notify, tenant)
    # A message's template sees the incident only.
    for keys, value in leaves(pipeline.model_dump(mode="json", by_alias=True, exclude={"notify"})):
        if isinstance(value, str):
            named.append((keys, tenant.why_not_text(value)))
            if keys[-1] == "connection":
                named.append((keys, tenant.why_not_connection(value)))
    for keys, complaint in named:
        if complaint is not None:
            yield keys, f"{'.'.join(keys)}: {complaint}"
