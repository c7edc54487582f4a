"""Ways to run a step: as local processes; as Kubernetes pods in time. Apart from what the step does."""
