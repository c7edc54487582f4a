"""Steps as Kubernetes Jobs: the objects, the calls, and what is read from them. Knows nothing of operators."""
