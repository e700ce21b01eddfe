"""What is in the kustomize folders, as kubectl renders it where it is installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2] / "deploy" / "kubernetes"
Manifest = dict[str, Any]


def written() -> list[Manifest]:
    """The objects of the base, file by file."""
    base = ROOT / "base"
    names = yaml.safe_load((base / "kustomization.yaml").read_text())["resources"]
    return [one for name in names for one in yaml.safe_load_all((base / name).read_text())]


def rendered(folder: str) -> list[Manifest] | None:
    """The objects of a folder with its patches and generators, or None without kubectl."""
    if shutil.which("kubectl") is None:
        return None
    words = ["kubectl", "kustomize", str(ROOT / folder)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def of_kind(manifests: list[Manifest], kind: str) -> Manifest:
    """The only object of a kind."""
    (found,) = [one for one in manifests if one["kind"] == kind]
    return found
