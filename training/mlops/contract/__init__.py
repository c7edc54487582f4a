"""
What the three runtimes share: refs, the documents of a step, and the settings of all steps.

It imports pydantic and the standard library only, for the airflow, the training and the validation runtime all have it.
"""
