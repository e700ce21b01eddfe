"""A study on a Ray cluster: an agent on each node, and as many nodes as the study wants."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from optuna_deadline_ray.launching import launch

__all__ = ["launch"]


def __getattr__(name: str) -> Any:
    """Ray is imported when it is used: counting nodes does not need it."""
    if name != "launch":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from optuna_deadline_ray.launching import launch
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise ModuleNotFoundError(
            "Ray is not installed: pip install 'optuna-deadline[ray]'", name="ray"
        ) from None
    return launch
