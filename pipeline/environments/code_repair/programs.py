"""All programs of code_repair by name; the unseen ones occur broken in `heldout_unseen` only."""

from __future__ import annotations

from pipeline.environments.code_repair.programs_lists import LISTS
from pipeline.environments.code_repair.programs_numbers import NUMBERS
from pipeline.environments.code_repair.programs_text import TEXT

PROGRAMS = {program.name: program for program in (*LISTS, *NUMBERS, *TEXT)}
SEEN = tuple(name for name, program in PROGRAMS.items() if not program.unseen)
UNSEEN = tuple(name for name, program in PROGRAMS.items() if program.unseen)
