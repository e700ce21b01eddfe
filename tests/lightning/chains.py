"""A trial in segments, each going on from the one before, and when two trials are equal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from elastic_harness import LEFT, Plan, run_segment


def chain(
    folder: Path, plan: Plan, moves: list[tuple[int, int | None]]
) -> tuple[list[list[dict[str, Any]]], dict[str, torch.Tensor]]:
    """Train in segments of (ranks, step to leave at); each goes on from the one before."""
    folder.mkdir()
    segments: list[list[dict[str, Any]]] = []
    resume = None
    for fence, (ranks, leave_at) in enumerate(moves, start=1):
        now = replace(
            plan, folder=str(folder), fence=fence, ranks=ranks, leave_at=leave_at, resume=resume
        )
        seen = run_segment(now)
        assert all(rank["error"] is None for rank in seen), seen
        segments.append(seen)
        if seen[0]["exitcode"] == 0:
            break
        assert [rank["exitcode"] for rank in seen] == [LEFT] * ranks
        resume = seen[0]["published"][-1]["path"]
    return segments, torch.load(folder / "final.pt")


def limited(
    folder: Path, plan: Plan, moves: list[tuple[int, int | None]]
) -> tuple[dict[str, torch.Tensor], list[str], list[int]]:
    """Train as a planner would that minds limits: the last weights, the reasons, and the sizes."""
    folder.mkdir()
    reasons: list[str] = []
    sizes: list[int] = []
    resume = None
    for fence in range(1, 20):
        ranks, leave_at = moves[min(fence, len(moves)) - 1]
        now = replace(
            plan,
            folder=str(folder),
            fence=fence,
            ranks=1 if reasons else ranks,
            leave_at=leave_at,
            resume=resume,
        )
        seen = run_segment(now)
        sizes.append(now.ranks)
        assert all(rank["error"] is None for rank in seen), seen
        reasons += sorted({reason for rank in seen for _, reason in rank["limits"]})
        if seen[0]["exitcode"] == 0:
            return torch.load(folder / "final.pt"), reasons, sizes
        assert [rank["exitcode"] for rank in seen] == [LEFT] * now.ranks
        resume = seen[0]["published"][-1]["path"] if seen[0]["published"] else resume
    raise AssertionError("it never ends")


def trace(segments: list[list[dict[str, Any]]]) -> list[tuple[Any, ...]]:
    """What each batch trained on, whoever did it."""
    rows = []
    for ranks in segments:
        for steps in zip(*(rank["steps"] for rank in ranks), strict=True):
            first = steps[0]
            assert all(
                step[key] == first[key] for step in steps for key in ("step", "epoch", "batch")
            )
            ids = sorted(i for step in steps if step["weight"] for i in step["ids"])
            rows.append((first["epoch"], first["batch"], first["step"], first["lr"], ids))
    return rows


def reports(segments: list[list[dict[str, Any]]]) -> list[list[float]]:
    return [report for ranks in segments for report in ranks[0]["reports"]]


def assert_same(
    one: tuple[list[list[dict[str, Any]]], dict[str, torch.Tensor]],
    other: tuple[list[list[dict[str, Any]]], dict[str, torch.Tensor]],
    tolerance: float = 1e-6,
) -> float:
    assert trace(one[0]) == trace(other[0])
    assert len(reports(one[0])) == len(reports(other[0]))
    for report, same in zip(reports(one[0]), reports(other[0]), strict=True):
        assert report == pytest.approx(same, abs=tolerance)
    assert one[0][-1][0]["global_step"] == other[0][-1][0]["global_step"]
    assert one[0][-1][0]["metrics"] == pytest.approx(other[0][-1][0]["metrics"], abs=tolerance)
    gap = max(float((one[1][name] - other[1][name]).abs().max()) for name in one[1])
    print(f"largest difference between final weights: {gap:.1e}")
    assert gap <= tolerance
    return gap
