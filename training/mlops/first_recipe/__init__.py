"""A recipe for a table that nobody has described yet: ``mlops init``."""
