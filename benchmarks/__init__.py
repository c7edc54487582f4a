"""Measurements beside baselines: ``make bench``. Each group is a module; its records go to ``build/bench.json``."""
