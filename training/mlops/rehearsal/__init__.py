"""A pipeline tried out on a sample of its data: all its mistakes at once, in seconds, each with its place and fix."""
