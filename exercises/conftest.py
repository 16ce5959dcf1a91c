"""Makes `pytest exercises` grade, from any folder."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tx.course.grading.plugin import (  # noqa: E402, F401
    pytest_addoption,
    pytest_cmdline_main,
    pytest_configure,
    student,
)
