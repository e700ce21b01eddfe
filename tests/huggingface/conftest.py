"""Make the training importable here and in the ranks, and the scripted policy here."""

from __future__ import annotations

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "lightning")]
os.environ["HF_HUB_OFFLINE"] = "1"  # nothing is downloaded
