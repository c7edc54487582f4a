"""Deployments for the attacks of this folder."""

from __future__ import annotations

from deployments import migrated, new_airflow

__all__ = ["migrated", "new_airflow"]
