"""A notifier by its name, with its settings checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from airflow.sdk import BaseNotifier
from jinja2 import StrictUndefined, TemplateError
from jinja2.sandbox import SandboxedEnvironment

from mlops.contract.section import SpecError, check_section
from mlops_provider.incidents import EXAMPLE, Incident
from mlops_provider.notifier_names import NOTIFIERS
from mlops_provider.notify_spec import EVENTS, Notify
from mlops_provider.section_file import KeyPath

Send = Callable[[Incident], None]


def sender(name: str, settings: Mapping[str, Any], place: str) -> Send:
    """
    Return what sends a message.

    :param name: as a pipeline's ``notify`` gives it
    :param place: where the settings stand, the beginning of a message
    :raises SpecError: where there is no such notifier, or these are no settings of it
    """
    notifier = NOTIFIERS.load(name)
    if isinstance(notifier, type) and issubclass(notifier, BaseNotifier):
        return _of_airflow(notifier, settings, place)
    if missing := [each for each in ("section", "send") if not hasattr(notifier, each)]:
        raise SpecError(
            f"{place}: notifier {name!r} is neither a notifier of Airflow nor one of ours: it has no "
            f"{' and no '.join(missing)}"
        )
    section = check_section(notifier.section, settings, place)
    return lambda incident: notifier.send(section, incident)


def check_notifiers(notify: Sequence[Notify], given: Sequence[Any], place: str) -> None:
    """
    Check the settings of entries that a DAG gives; those of a pipeline's file were checked with it, once for all tasks.

    :param given: the entries, before they were checked
    :raises SpecError: one line for each mistake
    """
    if all(isinstance(entry, Notify) for entry in given):
        return
    if wrong := [f"{place}: {mistake}" for _, mistake in mistakes(notify)]:
        raise SpecError("\n".join(wrong))


def mistakes(notify: Sequence[Notify]) -> Iterator[tuple[KeyPath, str]]:
    """Yield what is wrong with entries' settings, and where; their notifiers are imported."""
    for number, entry in enumerate(notify):
        place = f"notify.{number}.settings"
        try:
            sender(entry.by, entry.settings, place)
        except SpecError as error:
            for line in str(error).split("\n"):
                yield ("notify", str(number)), line


def _of_airflow(notifier: type[BaseNotifier], settings: Mapping[str, Any], place: str) -> Send:
    def send(incident: Incident) -> None:
        # Not by calling it: Airflow would render the message itself as a template, which can read every connection.
        made(incident).notify({})

    def made(incident: Incident) -> BaseNotifier:
        return notifier(**_rendered(settings, replace(incident, links=_Links(incident.links))))

    try:
        for event in EVENTS:
            made(replace(EXAMPLE, event=event))
    except TemplateError as error:
        fields = "event, subject, text, html, pipeline, dag_id, run_id, task_id, message, question, links"
        raise SpecError(f"{place}: a template has a mistake: {error}; incident has {fields}") from error
    except Exception as error:  # whatever somebody's class thinks of its arguments
        raise SpecError(f"{place}: {notifier.__name__} refuses them: {error}") from error
    return send


class _Links(dict[str, str]):
    """Which there are depends on what has happened: one that is not there is empty."""

    def __missing__(self, key: str) -> str:
        return ""


_TEMPLATES = SandboxedEnvironment(undefined=StrictUndefined)
"""They see the incident only. Not escaped: most notifiers send text."""


def _rendered(value: Any, incident: Incident) -> Any:
    if isinstance(value, str):
        return _TEMPLATES.from_string(value).render(incident=incident)
    if isinstance(value, Mapping):
        return {key: _rendered(each, incident) for key, each in value.items()}
    if isinstance(value, list):
        return [_rendered(each, incident) for each in value]
    return value
