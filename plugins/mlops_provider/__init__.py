"""An Airflow provider for production training pipelines. Importing it loads nothing but the version."""

import sys
from importlib.util import find_spec
from pathlib import Path

__version__ = "0.1.0"

# In a wheel the package mlops lies beside this one. Of a checkout Airflow has only plugins/ on its path; a folder of
# that name, without a file of its own, is none.
_found = find_spec("mlops")
if _found is None or _found.origin is None:
    sys.path.append(str(Path(__file__).parents[2] / "training"))
