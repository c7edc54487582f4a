"""
The verdict of a night: what happened, since when, whether production is safe, what differs from the last good night,
and what to do next. ``reading`` has the facts from Airflow's database; the other modules are pure functions.
"""
