"""Whether all is there that committed refs name, what damage affects, and making it again."""
