"""Grading: exercises that teach. `grade("name")` in a cell, `pytest exercises` in a shell."""

from tx.course.grading.exercise import Exercise, exercises_of, raises, randn
from tx.course.grading.live import grade, hint
from tx.course.grading.report import Report

__all__ = ["Exercise", "Report", "exercises_of", "grade", "hint", "raises", "randn"]
