"""Where Airflow's API server has what is ours."""

from __future__ import annotations

from typing import Final

API_PREFIX: Final = "/mlops/api/v1"
"""Of the REST API; see :mod:`mlops.contract.rest`."""
