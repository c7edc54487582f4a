"""The notifiers by name: ours, and those that other packages add."""

from __future__ import annotations

from typing import Final

from mlops.contract.extensions import ExtensionPoint

NOTIFIERS: Final = ExtensionPoint(
    kind="notifier",
    group="mlops.notifiers",
    builtin={
        "smtp": "mlops_provider.notifiers.smtp:SmtpMail",
        "webhook": "mlops_provider.notifiers.webhook:Webhook",
    },
    attributes=(),
)
"""Classes that implement :class:`mlops_provider.notifiers.base.Notifier`, or Airflow's own notifiers."""
