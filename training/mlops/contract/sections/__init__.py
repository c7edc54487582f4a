"""
The settings of the steps: one section per step, typed, checked when the DAG is parsed, unknown keys are errors.

A section is the only place of a setting's default. YAML and operator arguments both become a section; its JSON form
is what the step's process is given (:class:`mlops.contract.step.StepInput`).
"""
