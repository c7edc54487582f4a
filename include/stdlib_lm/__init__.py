"""How does Python's standard library go on? A small language model on its sources."""
