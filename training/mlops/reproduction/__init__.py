"""Make a model again from what it came from, and compare two models that are not the same."""
