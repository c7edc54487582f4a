"""What a model came from, made again; and what two models that are not the same differ in."""
