"""Make this folder and the harness importable, here and in the ranks that it forks."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "lightning")]
