"""Conformance suites for what other packages add. They need pytest."""
