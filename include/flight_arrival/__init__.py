"""How many minutes late will a flight arrive? Gradient-boosted trees that learn a number, from YAML."""
