"""Check that all objects named by committed refs are there, find what damage affects, and make lost objects again."""
