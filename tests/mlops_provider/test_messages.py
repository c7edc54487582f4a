"""Messages about incidents: what they say, how they are sent, and whom a team may tell."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from airflow.sdk import DAG, BaseNotifier
from project import REPOSITORY
from told_people import Hook, Mailbox, mail_server, web_hook

from mlops.contract.section import SpecError
from mlops.contract.step import Failure
from mlops_provider import messages
from mlops_provider.exceptions import StepFailedError
from mlops_provider.factory import TellOwners, build_dag, build_rollback_dags
from mlops_provider.incidents import EXAMPLE, incident_of
from mlops_provider.lateness import deadline, tell_late
from mlops_provider.messages import Tell, tell
from mlops_provider.notifiers.named import sender
from mlops_provider.notify_spec import EVENTS, Notify, trespasses
from mlops_provider.operators.ingest import IngestOperator
from mlops_provider.operators.promote import PromoteOperator
from mlops_provider.spec_file import load_pipeline
from mlops_provider.team_spec import Team, Tenant

SMTP = "airflow.providers.smtp.notifications.smtp:SmtpNotifier"
log = logging.getLogger(__name__)


@pytest.fixture
def mailbox(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mailbox]:
    with mail_server() as (box, connection):
        monkeypatch.setenv("AIRFLOW_CONN_MAIL", connection)
        yield box


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hook]:
    with web_hook() as (found, connection):
        monkeypatch.setenv("AIRFLOW_CONN_HOOK", connection)
        yield found


def entry(by: str, events: list[str] | None = None, **settings: Any) -> Notify:
    return Notify.model_validate({"by": by, "settings": settings} | ({} if events is None else {"events": events}))


def context(exception: Exception | None = None, **attributes: Any) -> Any:
    fields = {"dag_id": "flights", "task_id": "validate", "pipeline": "flights", "log": log, "links": {}}
    task = SimpleNamespace(**fields, get_flat_relatives=lambda upstream: [], **attributes)
    return {"task": task, "ti": SimpleNamespace(run_id="scheduled__2026-01-10T00:00:00+00:00"), "exception": exception}


class Shouting(BaseNotifier):
    """A notifier as Airflow's packages have them."""

    template_fields = ("text",)
    heard: ClassVar[list[str]] = []

    def __init__(self, *, text: str, loud: bool = False) -> None:
        super().__init__()
        self.text, self.loud = text, loud

    def notify(self, context: Any) -> None:
        self.heard.append(self.text.upper() if self.loud else self.text)


SHOUTING = f"{__name__}:Shouting"


@pytest.mark.parametrize(
    ("error", "failure", "said"),
    [
        (StepFailedError("x"), None, "change what validate names, then clear validate"),
        (StepFailedError("x"), Failure("BadDataError", "x", False, {}), "read the report of validate"),
        (ValueError("x"), None, "or see that it has passed, then clear validate"),
        (None, None, "look in the log of validate whether memory"),
    ],
    ids=["no process of a step said it", "a step", "an error of ours", "Airflow speaks for a process that was lost"],
)
def test_a_failure_says_what_to_do(hook: Hook, error: Exception | None, failure: Failure | None, said: str) -> None:
    happened = context(error)
    if failure is not None:
        happened["task"] = type("ValidateOperator", (SimpleNamespace,), {})(**vars(happened["task"]), failure=failure)
    Tell("failed", [entry("webhook", connection="hook", endpoint="incidents")])(happened)
    (posted,) = hook.posted
    assert posted["action"].startswith("validate changed nothing in production.\nNext: ")
    assert said in posted["action"]
    assert posted["action"] in posted["text"]


def test_a_failure_after_a_promotion_does_not_say_that_nothing_changed(hook: Hook) -> None:
    happened = context(StepFailedError("x"))
    happened["task"].get_flat_relatives = lambda upstream: [SimpleNamespace(task_type="PromoteOperator")]
    Tell("failed", [entry("webhook", connection="hook", endpoint="incidents")])(happened)
    assert hook.posted[0]["action"].startswith("A task before it may have put a version into production")


def test_a_mail_says_what_happened_and_where_to_look(mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example.com/ml/")
    happened = context(StepFailedError("column 'delay' < 0 in 3 rows\nsee the report"))
    happened["task"].links = {"Report": "/mlops/reports/pipelines/flights/report.html"}
    Tell("failed", [entry("smtp", to=["a@b.org", "c@d.org"], cc=["e@f.org"], connection="mail")])(happened)
    (mail,) = mailbox.mails
    assert mailbox.recipients == [["a@b.org", "c@d.org", "e@f.org"]]
    assert mail["Subject"] == "flights: validate failed (scheduled__2026-01-10T00:00:00+00:00)"
    assert mail["From"] == "mlops@example.com"
    part = mail.get_body(("html",))
    assert part is not None
    page = part.get_content()
    assert "column &#x27;delay&#x27; &lt; 0 in 3 rows\nsee the report" in page
    assert 'href="https://airflow.example.com/ml/mlops/reports/pipelines/flights/report.html"' in page
    run = "https://airflow.example.com/ml/dags/flights/runs/scheduled__2026-01-10T00%3A00%3A00%2B00%3A00"
    assert f'href="{run}"' in page
    assert f'href="{run}/tasks/validate"' in page


def test_a_web_hook_gets_the_fields_as_json(hook: Hook) -> None:
    Tell("stopped", [entry("webhook", connection="hook", endpoint="in/1")])(context(news="no better"))
    (posted,) = hook.posted
    assert hook.paths == ["/in/1"]
    assert (posted["event"], posted["pipeline"], posted["task_id"]) == ("stopped", "flights", "validate")
    assert posted["subject"].startswith("flights: nothing goes into production")
    assert posted["text"].startswith("no better\n\nRun: ")


def test_a_question_is_shown_as_its_form_shows_it(mailbox: Mailbox) -> None:
    body = "good\n\n| a | b |\n|---|---|\n| 1 | <script>x</script> |\n\n[The whole report](/mlops/reports/r.html)"
    asked = incident_of("approval", context(), "Put version 3 of flights into production?", body)
    tell([entry("smtp", to=["a@b.org"], connection="mail")], asked, log)
    part = mailbox.mails[0].get_body(("html",))
    assert part is not None
    page = part.get_content()
    assert "<td>&lt;script&gt;x&lt;/script&gt;</td>" in page
    assert f'href="{asked.links["Run"].split("/dags")[0]}/mlops/reports/r.html"' in page
    assert asked.links["Answer"].endswith("/tasks/validate/required_actions")
    assert "Put version 3 of flights into production?" in page


@pytest.mark.parametrize("event", EVENTS)
def test_each_is_told_of_what_they_asked_for_only(hook: Hook, event: str) -> None:
    others = [each for each in EVENTS if each != event]
    notify = [entry("webhook", events=others, connection="hook"), entry("webhook", events=[event], connection="hook")]
    tell(notify, replace(EXAMPLE, event=event), log)  # type: ignore[arg-type]
    assert [each["event"] for each in hook.posted] == [event]


def test_a_hook_that_is_away_for_a_moment_is_tried_again(hook: Hook) -> None:
    hook.refused = 2
    tell([entry("webhook", connection="hook")], EXAMPLE, log)
    assert len(hook.posted) == 1


def test_what_cannot_be_sent_is_said_and_keeps_nothing_up(
    hook: Hook, mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Broken: a hook that never answers would keep an approver from being asked, or fail the task."""
    monkeypatch.setattr(messages, "_MOST_SECONDS", 1.0)
    hook.released.clear()
    notify = [
        entry("webhook", connection="hook"),
        entry("smtp", to=["a@b.org"], connection="nowhere"),
        entry("smtp", to=["a@b.org"], connection="mail"),
    ]
    monkeypatch.setattr(messages, "_TRIES", 1)
    with caplog.at_level(logging.INFO):
        tell(notify, EXAMPLE, log)
    hanging, unknown, sent = (each.getMessage() for each in caplog.records if each.name == __name__)
    assert "The message was not sent within 1 s by notify.0 (webhook by connection 'hook')" in hanging
    assert unknown.startswith("The message was not sent, AirflowException")
    assert "by notify.1 (smtp by connection 'nowhere')" in unknown
    assert "The message was sent by notify.2 (smtp by connection 'mail')" in sent
    assert len(mailbox.mails) == 1


def test_links_that_an_incident_does_not_have_are_empty() -> None:
    """Broken: a template that names the form of an approval would be refused, or lose the messages without one."""
    Shouting.heard.clear()
    notify = [entry(SHOUTING, text="{{ incident.links.Answer or incident.links.Run }}|{{ incident.links['Report'] }}")]
    tell(notify, replace(EXAMPLE, links={"Run": "http://a/run"}), log)
    tell(notify, replace(EXAMPLE, event="approval", links={"Answer": "http://a/form"}), log)
    assert Shouting.heard == ["http://a/run|", "http://a/form|"]


def test_one_of_a_mapped_task_is_told_from_the_others() -> None:
    found = context(StepFailedError("no"))
    found["ti"].map_index = 3
    incident = incident_of("failed", found, "no")
    assert incident.subject.startswith("flights: validate[3] failed")
    assert incident.links["Log"].endswith("/tasks/validate/mapped/3")


def test_what_is_no_news_is_not_told(hook: Hook) -> None:
    """A promotion that was cleared after others decided otherwise is skipped: nobody needs to hear it."""
    Tell("stopped", [entry("webhook", connection="hook")])(context(news=""))
    assert not hook.posted


def test_a_lost_process_is_spoken_for() -> None:
    """Airflow's DAG processor calls the callback then, with no error at hand."""
    Shouting.heard.clear()
    Tell("failed", [entry(SHOUTING, text="{{ incident.message }}")])(context())
    (heard,) = Shouting.heard
    assert heard.startswith("It ended without a word: killed, out of memory, with its machine, or never started.")


def test_of_a_rollback_whose_process_was_lost_the_owners_of_its_model_hear(tmp_path: Path, hook: Hook) -> None:
    """Broken: a bad model stays in production, and nobody is told that taking it back has failed."""
    events = (REPOSITORY / "tests/fixtures/events/events.pipeline.yaml").read_text()
    told = "\nnotify: [{by: webhook, settings: {connection: hook}}]\n"
    (tmp_path / "events.pipeline.yaml").write_text(events + told)
    others = events.replace("pipeline: events", "pipeline: others").replace("_model: events", "_model: others")
    (tmp_path / "others.pipeline.yaml").write_text(others + told)
    # As Airflow's DAG processor calls it: with the task as the file makes it, and without an error.
    task = build_rollback_dags(tmp_path / "rollback.py")["rollback"].task_dict["rollback"]
    lost: Any = {"task": task, "ti": SimpleNamespace(run_id="r"), "params": {"model": "events", "why": "complaints"}}
    TellOwners(tmp_path, "failed")(lost)
    (posted,) = hook.posted
    assert (posted["pipeline"], posted["task_id"]) == ("events", "rollback")
    assert posted["message"].startswith("It ended without a word")


def test_a_long_message_is_cut_and_says_so() -> None:
    assert len(incident_of("failed", context(), "x" * 100_000).message) < 4200


def test_secrets_that_airflow_masks_are_masked() -> None:
    from airflow.sdk.log import mask_secret

    mask_secret("hunter2hunter2")
    said = incident_of("failed", context(), "cannot reach postgresql://ana:hunter2hunter2@db/x")
    assert "hunter2" not in said.text


def test_a_notifier_of_airflow_gets_its_arguments_with_the_incident_in_them() -> None:
    Shouting.heard.clear()
    tell([entry(SHOUTING, text="{{ incident.pipeline }}: {{ incident.message }}", loud=True)], EXAMPLE, log)
    assert Shouting.heard == ["FLIGHTS: COLUMN 'DELAY' HAS VALUES OUTSIDE ITS DOMAIN"]


def test_a_message_is_no_template(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: a message with ``{{ conn.x.password }}`` in it, of a column's name say, would send the password."""
    monkeypatch.setenv("AIRFLOW_CONN_SECRET", "http://ana:secret@host")
    Shouting.heard.clear()
    sly = replace(EXAMPLE, message="{{ conn.secret.password }}{{ 7 * 7 }}")
    tell([entry(SHOUTING, text="{{ incident.message }}")], sly, log)
    assert Shouting.heard == ["{{ conn.secret.password }}{{ 7 * 7 }}"]


@pytest.mark.parametrize(
    "template",
    ["{{ conn.secret.password }}", "{{ var.value.x }}", "{{ incident.__class__.__mro__ }}", "{{ incident.txt }}"],
)
def test_a_template_sees_the_incident_only(template: str) -> None:
    with pytest.raises(SpecError, match="a template has a mistake"):
        sender(SHOUTING, {"text": template}, "here")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[{by: smpt}]", r"x:0:by must be one of smtp, webhook \(did you mean 'smtp'\?\)"),
        ("[{by: smtp}]", r"notify.0.settings: the key 'to' is missing"),
        ("[{by: smtp, settings: {to: [nobody]}}]", "to.0 must be a mail address such as oncall@example.com, got 'nob"),
        (
            "[{by: webhook, events: [faild]}]",
            "'approval', 'promoted', 'rolled_back' or 'late', got 'faild'",
        ),
        ("[{by: webhook, events: []}]", "must have at least 1 item"),
        ("[{by: webhook, settings: {conection: x}}]", "unknown key 'conection'; did you mean 'connection'"),
        ("{by: webhook}", "notify must be a list"),
        ("[{by: 'slakc.notify:Slack'}]", "cannot import slakc.notify:Slack"),
        ("[{by: 'json:dumps'}]", "neither a notifier of Airflow nor one of ours"),
        (f"[{{by: '{SMTP}', settings: {{too: x}}}}]", "SmtpNotifier refuses them"),
        (f"[{{by: '{SMTP}', settings: {{to: !!binary /w==}}}}]", "must be text, numbers, true, false, null, and lists"),
        (f"[{{by: '{SMTP}', settings: {{to: '{{{{ incident.x }}}}'}}}}]", "incident has event, subject, text"),
    ],
)
def test_a_mistake_in_a_pipeline_is_said_where_it_stands(tmp_path: Path, text: str, message: str) -> None:
    events = (REPOSITORY / "tests/fixtures/events/events.pipeline.yaml").read_text()
    file = tmp_path / "events.pipeline.yaml"
    file.write_text(f"{events}\nnotify: {text}\n")
    with pytest.raises(SpecError, match=message.removeprefix("x:0:")) as raised:
        load_pipeline(file)
    assert f"{file.name}:{len(events.splitlines()) + 2}:" in str(raised.value)


def test_operators_take_it_too() -> None:
    common: dict[str, Any] = {"task_id": "ingest", "sources": {"a": {"path": "a.csv"}}, "event_time": "at"}
    common["pipeline"] = "flights"
    step = IngestOperator(**common, notify=[{"by": "webhook", "events": ["failed"]}])
    assert next(type(each).__name__ for each in step.on_failure_callback) == "Tell"
    assert not step.on_skipped_callback
    assert not step.on_success_callback, "a snapshot is nothing that people are told of"
    for wrong, message in (
        ([{"by": "smpt"}], "task 'ingest': notify.0: by must be one of smtp"),
        ([{"by": "smtp"}], "task 'ingest': notify.0.settings: the key 'to' is missing"),
        ({"by": "smtp"}, "task 'ingest': notify must be a list"),
        (None, "task 'ingest': notify must be a list"),
    ):
        with pytest.raises(SpecError, match=message):
            IngestOperator(**common, notify=wrong)


def test_a_dag_says_it_once_for_all_its_tasks() -> None:
    notify = [{"by": "webhook", "events": ["promoted"]}]
    with DAG(dag_id="flights", schedule=None, default_args={"notify": notify}):
        promote = PromoteOperator(task_id="promote", version="{{ x }}", registered_model="flights")
    assert [each.event for each in promote.on_success_callback] == ["promoted"]


def test_a_run_that_is_late_says_since_when_and_how_it_stands(hook: Hook) -> None:
    notify = [entry("webhook", events=["late"], connection="hook").model_dump(mode="json")]
    run = {"dag_id": "flights", "dag_run_id": "r", "logical_date": "2026-01-10T00:00:00Z", "state": "running"}
    tell_late("flights", 7, notify, {"dag_run": run | {"queued_at": "2026-01-11T00:00:03Z"}})
    (posted,) = hook.posted
    assert posted["message"] == (
        "The run of 2026-01-10T00:00:00Z was to have succeeded 7 h after it was due, 2026-01-11 00:00 UTC, "
        "and is running."
    )
    assert posted["links"] == {"Run": posted["links"]["Run"]}


@pytest.mark.parametrize(
    ("hours", "notify", "message"),
    [
        (0, [{"by": "webhook"}], "hours must be more than 0, and 8760 at most, got 0"),
        (1e12, [{"by": "webhook"}], "8760 at most"),
        (7, [{"by": "webhook", "events": ["failed"]}], "no entry of notify is told of late"),
        (7, [{"by": "smtp"}], "notify.0.settings: the key 'to' is missing"),
        (7, [{"by": "smpt"}], "notify.0: by must be one of smtp"),
        (None, [{"by": "webhook"}], "no entry of notify is told of late"),
        (7, [{"by": "webhook", "events": ["failed"], "late_hours": 9}], "late_hours must be given with late among"),
        (7, [{"by": "webhook", "late_hours": 1e12}], "late_hours must be <= 8760"),
    ],
)
def test_a_deadline_of_which_nobody_would_hear_is_refused(hours: float | None, notify: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        deadline(hours, notify, "flights")


def test_a_pipeline_has_a_deadline_where_somebody_is_told(tmp_path: Path) -> None:
    events = (REPOSITORY / "tests/fixtures/events/events.pipeline.yaml").read_text()
    file = tmp_path / "events.pipeline.yaml"

    def load(text: str) -> DAG:
        file.write_text(f"{events}\n{text}\n")
        return build_dag(load_pipeline(file))

    assert not load("notify: [{by: webhook}]").deadline
    (alert,) = load("notify: [{by: webhook}]\ndeadline_hours: 7").deadline or []
    assert (alert.interval, alert.callback.kwargs["hours"]) == (timedelta(hours=7), 7)
    with pytest.raises(SpecError, match="deadline_hours must be given with an entry of notify that is told of late"):
        load("deadline_hours: 7")
    for named in ("[late]", "[late, failed, approval, stopped, promoted, failed]"):
        with pytest.raises(SpecError, match="deadline_hours must be a number of hours: notify names late"):
            load(f"notify: [{{by: webhook, events: {named}}}]")
    # Whoever has hours of their own needs none of the pipeline, and hears nothing by these.
    own = load("notify: [{by: webhook, events: [late], late_hours: 2}]").deadline or []
    assert [alert.interval for alert in own] == [timedelta(hours=2)]
    with pytest.raises(SpecError, match="deadline_hours must be given with an entry of notify that is told of late"):
        load("notify: [{by: webhook, late_hours: 2}]\ndeadline_hours: 7")
    # Airflow adds it to dates: a larger one would take all DAGs of the folder out of service.
    with pytest.raises(SpecError, match=r"deadline_hours must be <= 8760, got 1000000000000.0"):
        load("notify: [{by: webhook}]\ndeadline_hours: 1.0e+12")


def test_others_are_asked_where_nobody_has_done_anything(hook: Hook) -> None:
    """Broken: the pager goes off with the mail, or nobody but the mail's reader ever hears of it."""
    mail = {"by": "webhook", "events": ["failed", "late"], "settings": {"connection": "hook", "endpoint": "mail"}}
    pager = {"by": "webhook", "late_hours": 9, "settings": {"connection": "hook", "endpoint": "pager"}}
    silent = {"by": "webhook", "events": ["failed"], "settings": {"connection": "hook", "endpoint": "silent"}}
    first, second = deadline(7, [pager, mail, silent], "flights")
    assert (first.interval, second.interval) == (timedelta(hours=7), timedelta(hours=9))
    run = {"dag_id": "flights", "dag_run_id": "r", "state": "failed", "queued_at": "2026-01-11T00:00:03Z"}
    for alert in (first, second):
        tell_late(**alert.callback.kwargs, context={"dag_run": run})
    assert hook.paths == ["/mail", "/pager"]
    assert [each["message"] for each in hook.posted] == [
        f"The run was to have succeeded {hours} h after it was due, 2026-01-11 00:00 UTC, and is failed."
        for hours in (7, 9)
    ]


def test_a_team_tells_by_what_it_may_use_only(tmp_path: Path) -> None:
    """Broken: it could mail any file of the worker, or post with a connection of others."""
    given = {"names": "a_", "store": "s3://a/a", "workspace": "a", "steps_login": "x", "release_login": "y"}
    team = Team.model_validate(given | {"reader_login": "z", "allowed_connections": ["hook"], "notifiers": [SHOUTING]})
    tenant = Tenant(name="ads", teams={"ads": team})

    def said(*entries: Notify) -> list[str]:
        return [f"{'.'.join(keys)}: {why}" for keys, why in trespasses(entries, tenant)]

    assert said(entry("webhook", connection="hook"), entry(SHOUTING, text="{{ incident.text }}")) == []
    assert said(entry("smtp", to=["a@b.org"], connection="mail")) == [
        "notify.0.settings.connection: 'mail' is no Airflow connection of team 'ads', which has hook"
    ]
    assert "is no notifier of team 'ads'" in said(entry(SMTP, to="a@b.org", files=["/etc/passwd"]))[0]
    assert "notify.0.settings.smtp_conn_id" in said(entry(SHOUTING, text="x", smtp_conn_id="mail"))[0]
    # What a notifier takes where nothing is named is the deployment's too.
    left_out = said(entry("webhook"), entry("smtp", to=["a@b.org"]))
    assert [each.partition(", and")[0] for each in left_out] == [
        "notify.0.settings: connection is left out",
        "notify.1.settings: connection is left out",
    ]
    assert "'http_default' is no Airflow connection of team 'ads', which has hook" in left_out[0]
