"""``preassert remap``: labels in files become 0..K-1 and back, and nothing else in the files changes."""

from __future__ import annotations

from preassert.remap.recode import Options
from preassert.remap.run import Job, Result, Written, map_in, run

__all__ = ["Job", "Options", "Result", "Written", "map_in", "run"]
