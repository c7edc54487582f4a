"""A pipeline tried out, in a terminal or in Airflow: nothing is registered."""
