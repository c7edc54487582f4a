"""A pipeline tried out from a terminal, without Airflow's scheduler: ``mlops run``."""
