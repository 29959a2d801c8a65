"""Lets the test modules of this folder import the helpers beside them (``conformance``, ``compare``)."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
