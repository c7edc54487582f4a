"""What people are told of: something that happened to a pipeline's run, in words."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from airflow.providers.common.compat.sdk import redact

from mlops_provider.airflow_pages import base_url, form_page, run_page, task_page

if TYPE_CHECKING:
    from airflow.sdk import Context

    from mlops_provider.notify_spec import Event

_SUBJECTS: Final[Mapping[Event, str]] = {
    "failed": "{pipeline}: {task_id} failed",
    "stopped": "{pipeline}: nothing goes into production",
    "approval": "{pipeline}: a version waits for your approval",
    "promoted": "{pipeline}: a new version is in production",
    "rolled_back": "{pipeline}: an earlier version is in production again",
    "late": "{pipeline}: the run is late",
}
_MOST_CHARACTERS: Final = 4000
"""Of a message, and of a question: many chats refuse what is much longer than a page."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Incident:
    """What happened, as a message carries it. A notifier's settings may use its fields: ``{{ incident.text }}``."""

    event: Event
    pipeline: str
    dag_id: str
    run_id: str
    task_id: str
    """Empty where it happened to the run as a whole; with its number, ``score[3]``, where it is one of a mapped one."""
    message: str
    """What happened, in the step's own words."""
    action: str = ""
    """Whether production is safe, and what to do next; empty where nobody needs to do anything."""
    question: str = ""
    """What an approval asks, as Markdown."""
    links: Mapping[str, str] = field(default_factory=dict)
    """Addresses for whoever wants to see more, by what they show."""

    @property
    def subject(self) -> str:
        """One line; it names the run, so that mail programs keep nights apart."""
        return f"{_SUBJECTS[self.event].format(pipeline=self.pipeline, task_id=self.task_id)} ({self.run_id})"

    @property
    def text(self) -> str:
        """The whole of it as plain text, or Markdown where it is a question."""
        parts = [
            self.message,
            self.action,
            self.question,
            "\n".join(f"{name}: {url}" for name, url in self.links.items()),
        ]
        return "\n\n".join(part for part in parts if part)

    @property
    def html(self) -> str:
        """The whole of it as a page for mail."""
        said = "".join(
            f'<p style="white-space: pre-wrap">{html.escape(part)}</p>' for part in (self.message, self.action) if part
        )
        links = " &middot; ".join(
            f'<a href="{html.escape(url)}">{html.escape(name)}</a>' for name, url in self.links.items()
        )
        return (
            '<!doctype html><html><body style="font: 15px/1.5 sans-serif; max-width: 50em">'
            f"<h2>{html.escape(self.subject)}</h2>{said}{_as_html(self.question)}<p>{links}</p></body></html>"
        )

    def document(self) -> dict[str, Any]:
        """As JSON, for programs."""
        return {**asdict(self), "links": dict(self.links), "subject": self.subject, "text": self.text}


def incident_of(event: Event, context: Context, message: str, question: str = "", action: str = "") -> Incident:
    """
    :param context: of the task to which it happened
    :param message: what happened
    :param action: what to do next
    :param question: what an approval asks, as Markdown
    """
    task, instance = context["task"], context["ti"]
    index = getattr(instance, "map_index", None)
    index = -1 if index is None else index
    place = task.dag_id, instance.run_id, task.task_id, index
    links = {"Answer": base_url() + form_page(*place)} if event == "approval" else {}
    own: Mapping[str, str] = getattr(task, "links", {})
    links |= {name: base_url() + url if url.startswith("/") else url for name, url in own.items() if url}
    return _incident(
        event=event,
        pipeline=getattr(task, "pipeline", None) or task.dag_id,
        dag_id=task.dag_id,
        run_id=instance.run_id,
        task_id=task.task_id if index == -1 else f"{task.task_id}[{index}]",
        message=message,
        action=action,
        question=_cut(str(redact(question)).replace("](/", f"]({base_url()}/"), "the form has the whole question"),
        links=links
        | {"Run": base_url() + run_page(task.dag_id, instance.run_id), "Log": base_url() + task_page(*place)},
    )


def incident_of_run(event: Event, pipeline: str, dag_id: str, run_id: str, message: str) -> Incident:
    """Return an incident of a whole run. For the parameters see :class:`Incident`."""
    links = {"Run": base_url() + run_page(dag_id, run_id)}
    return _incident(
        event=event, pipeline=pipeline, dag_id=dag_id, run_id=run_id, task_id="", message=message, links=links
    )


def _incident(*, message: str, **fields: Any) -> Incident:
    # As Airflow does with what it logs: an error may repeat an address with a password in it.
    said = _cut(str(redact(message)).strip(), "the task's log ends with the whole message")
    return Incident(message=said, **fields)


def _cut(text: str, where: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]} ... ({where})"


EXAMPLE: Final = Incident(
    event="failed",
    pipeline="flights",
    dag_id="flights",
    run_id="scheduled__2026-01-10T00:00:00+00:00",
    task_id="validate",
    message="column 'delay' has values outside its domain",
    links={"Log": "http://localhost:8080/dags/flights"},
)
"""One to try a notifier's settings with."""


def _as_html(markdown: str) -> str:
    if not markdown:
        return ""
    from markdown_it import MarkdownIt

    # Without raw HTML: names of models and reasons are whatever somebody has written.
    page: str = MarkdownIt("commonmark", {"html": False}).enable("table").render(markdown)
    return page
