"""One operator per step."""
