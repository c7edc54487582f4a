"""Signed records: who decided, which entry of a trail is the newest, which files a version is. Airflow signs them, and
whoever reads one verifies it."""
