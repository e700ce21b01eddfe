"""The README and the links of a package index, where no path of the repository leads anywhere."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(!?)(\[[^\]]*\]\()(?!\w+:|#)([^)]+)\)")


class IndexMetadata(MetadataHookInterface):
    """Makes the README's links absolute, under the repository's address.

    ``OPTUNA_DEADLINE_HOME`` is that address, or else the ``home`` in pyproject.toml.
    """

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the readme and the urls."""
        home = os.environ.get("OPTUNA_DEADLINE_HOME", self.config["home"]).rstrip("/")

        def absolute(link: re.Match[str]) -> str:
            image, text, path = link.groups()
            return f"{image}{text}{home}/{'raw' if image else 'blob'}/main/{path})"

        text = (Path(self.root) / "README.md").read_text()
        metadata["readme"] = {
            "content-type": "text/markdown", "text": _LINK.sub(absolute, text),
        }  # fmt: skip
        metadata["urls"] = {
            "Source": home,
            "Documentation": f"{home}/blob/main/docs/guide/index.md",
            "Issues": f"{home}/issues",
        }
