"""What the tests of question_dag and of what makes its tasks expect alike."""

from __future__ import annotations

BOTH_SOLVED = {
    "success": 1,
    "answered": 1,
    "right": 1,
    "solved": 2,
    "required": 2,
    "calls": 2,
    "recall": 1,
    "precision": 1,
    "f1": 1,
}
"""The reward's components where both sub-questions were solved by two calls."""
