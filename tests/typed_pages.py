"""Type-check strictly the scripts that users begin with: `python tests/typed_pages.py`.

This is no test: with the cache of the project's own check it takes seconds, from an empty one a
minute.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
#: A plain study, one machine or several, a loop of one's own, the lowest level, and research:
#: each page with the numbers of its snippets.
PAGES = {
    "README.md": (0, 1),
    "docs/guide/pytorch.md": (0,),
    "docs/guide/workers.md": (1,),
    "docs/policies/index.md": (0,),
}


def main() -> int:
    with TemporaryDirectory() as folder:
        scripts = []
        for page, numbers in PAGES.items():
            snippets = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
            for number in numbers:
                scripts.append(Path(folder, f"script_{len(scripts)}.py"))
                scripts[-1].write_text(snippets[number])
        # Other options than those of the project's own check would empty its cache.
        command = [sys.executable, "-m", "mypy", "--no-error-summary", *map(str, scripts)]
        ran = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    theirs = "[no-untyped-call]"  # methods of PyTorch without types
    errors = [line for line in ran.stdout.splitlines() if not line.endswith(theirs)]
    print("\n".join(errors) or f"The {len(scripts)} scripts of the pages are strictly typed.")
    return 1 if errors or ran.returncode > 1 else 0


if __name__ == "__main__":
    sys.exit(main())
