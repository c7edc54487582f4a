"""Airflow's pages in Debian's Chromium, as people see them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from axe_playwright_python.sync_playwright import Axe
from live_airflow import LiveAirflow
from playwright.sync_api import Page, Route, sync_playwright
from project import REPOSITORY

from mlops_provider.local.client import AirflowClient

SCREENSHOTS = REPOSITORY / "build/screenshots"
_OURS = "[data-mlops]"
"""Our part of a page; the rest is Airflow's."""
WAIT_MS = 60_000
"""For what a page shows, on a machine that has much else to do."""
_HEAVY = ("editor", "iconRegistry")
"""Begin the names of files of 7 MB that Airflow's pages load for the code's view."""


@contextmanager
def page_at(
    airflow: LiveAirflow,
    path: str,
    *,
    width: int = 1400,
    scheme: Literal["light", "dark"] = "light",
    by: AirflowClient | None = None,
) -> Iterator[Page]:
    """
    Open a page of Airflow.

    :param path: below Airflow's address
    :param width: of the window, pixels
    :param by: whose login it is; the deployment's own user's if not given
    """
    chromium = shutil.which("chromium")
    assert chromium is not None, "make services installs it"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        token = (by or airflow.client).authorization.removeprefix("Bearer ")
        root = f"{airflow.stack.airflow_url}{airflow.prefix}"
        context.add_cookies([{"name": "_token", "value": token, "url": root}])
        context.route("**/*", _light)
        page = context.new_page()
        page.set_default_timeout(WAIT_MS)
        page.goto(f"{root}{path}")
        try:
            yield page
        except BaseException:
            _picture(page, "failed")
            raise
        finally:
            browser.close()


def keep(page: Page, name: str) -> None:
    """
    Keep a picture of a page, for people to look at, and have axe look whether somebody could not use it: who sees
    little, has no mouse, or hears what a screen reader says.
    """
    _picture(page, name)
    found = Axe().run(page, context=_OURS, options={"resultTypes": ["violations"]}).response
    wrong = [
        f"{each['id']}: {each['help']}: {node['html'][:200]} ({node.get('failureSummary', '')})"
        for each in found["violations"]
        for node in each["nodes"]
    ]
    assert wrong == [], f"{name}: " + "\n".join(wrong)


def _picture(page: Page, name: str) -> None:
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENSHOTS / f"{name}.png")


def _light(route: Route) -> None:
    file = route.request.url.rpartition("/")[2]
    if file.startswith(_HEAVY) or file.endswith(".wasm"):
        route.abort()
    else:
        route.continue_()
