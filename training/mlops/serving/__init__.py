"""A trained model as MLflow serves it: with its features, its code and what both import, in one folder."""
