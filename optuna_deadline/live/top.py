"""Shows a study while it runs: a view of 80 by 24 on a terminal, plain lines in a pipe."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from optuna_deadline._numbers import format_count
from optuna_deadline._printable import printable
from optuna_deadline.errors import StudyGone
from optuna_deadline.live.notebook import in_notebook, show
from optuna_deadline.live.view import (
    TrialRow,
    View,
    by_relevance,
    figure,
    finite,
)
from optuna_deadline.live.watcher import StudyWatcher
from optuna_deadline.values.deadlines import format_duration
from optuna_deadline.worker.database_errors import DATABASE_ERRORS

_BLOCKS = "▁▂▃▄▅▆▇█"
_CURVE = 12
_DECISIONS = 6
_LIMITS = 3  # the newest trials with a limit
_NOTEBOOK = 20  # lines
_FIXED = 8  # four lines at the top, a heading, a line for the rest, two empty ones
_COLOURS = {
    "running": "green",
    "ready": "cyan",
    "paused": "yellow",
    "complete": "bold blue",
    "failed": "red",
    "pruned": "bright_black",
    "retired": "bright_black",
}


def render(view: View, height: int = 24) -> RenderableType:
    """The view as a rich renderable of at most ``height`` lines.

    Args:
        view: The view.
        height: The number of lines; trials that do not fit are counted in one line.
    """
    decisions = view.decisions[-_DECISIONS:]
    limits = view.limits[:_LIMITS]
    extra = bool(view.shares) + bool(view.drained) + bool(view.alone) + len(limits)
    room = max(1, height - _FIXED - len(decisions) - extra)
    rows = by_relevance(view)
    shown, rest = rows[:room], rows[room:]
    parts: list[RenderableType] = [_time(view), _best(view), _pool(view), _used(view)]
    if view.shares:
        parts.append(Text(_shares(view), no_wrap=True, overflow="ellipsis"))
    if view.drained:
        hosts = f"drained  {', '.join(view.drained)}"
        parts.append(Text(hosts, style="yellow", no_wrap=True, overflow="ellipsis"))
    if view.alone:
        hosts = f"alone    {', '.join(view.alone)}: no other host can read the checkpoints"
        parts.append(Text(hosts, style="yellow", no_wrap=True, overflow="ellipsis"))
    for limit in limits:
        parts.append(Text(f"slots  {limit}", style="yellow", no_wrap=True, overflow="ellipsis"))
    parts.append(Text())
    parts.append(_trials(view, shown))
    if rest:
        parts.append(Text(f" and {len(rest)} more: {_states(rest)}", style="bright_black"))
    if decisions:
        parts.append(Text())
    for decision in decisions:
        words = Text(f"{_since(decision.at)}  {decision.words}", no_wrap=True, overflow="ellipsis")
        words.stylize("bright_black", 0, 8)
        parts.append(words)
    return Group(*parts)


def lines(previous: View | None, view: View) -> list[str]:
    """The changes since ``previous``, a sentence each; the whole state without it."""
    if previous is None:
        until = view.deadline.strftime("%H:%M:%S")
        heading = f"{view.study}: {_left(view)} until {until}"
        slots = format_count(view.slots_total, "slot")
        return [f"{heading}, {slots}", *lines(_blank(view), view)]
    news = [
        f"{_since(decision.at)}  {decision.words}"
        for decision in view.decisions
        if decision not in previous.decisions
    ]
    now = _since(view.duration - view.time_left)
    before = {row.number: row.state for row in previous.rows}
    for row in view.rows:
        if row.state in ("complete", "pruned") and before.get(row.number) != row.state:
            news.append(f"{now}  trial {row.number} {row.state}, best {figure(row.best)}")
    if finite(view.best_value) and view.best_value != previous.best_value:
        where = f"trial {view.best_trial}, step {view.best_step}"
        news.append(f"{now}  best {figure(view.best_value)} ({where})")
    if view.shares != previous.shares and view.shares:
        news.append(f"{now}  {_shares(view)}")
    if previous.time_left // 10 != view.time_left // 10:
        used = f"{view.slots_used} of {format_count(view.slots_total, 'slot')} used"
        money = "" if view.spent is None else f", {view.spent:.4g} of {view.budget} spent"
        news.append(f"{now}  {_left(view)} left, {used}{money}; {_states(view.rows)}")
    return news


def _left(view: View) -> str:
    return format_duration(max(0.0, view.time_left))


def one_line(view: View) -> RenderableType:
    """The study in one line of a terminal."""
    best = "none yet"
    if finite(view.best_value):
        best = f"{figure(view.best_value)} (trial {view.best_trial}, step {view.best_step})"
    words = (
        f"{view.study}  {_left(view)} left  best {best}  "
        f"{view.slots_used} of {format_count(view.slots_total, 'slot')}  {_states(view.rows)}"
    )
    return Text(words, no_wrap=True, overflow="ellipsis")


def sparkline(values: Sequence[float | None], low: float, high: float, width: int = _CURVE) -> str:
    """A curve in at most ``width`` characters; a dot for a value that is not finite."""
    picked = values
    if len(values) > width:  # the last of each stretch, so that the newest one is visible
        picked = [values[(i + 1) * len(values) // width - 1] for i in range(width)]
    return "".join(_block(value, low, high) for value in picked)


def _block(value: float | None, low: float, high: float) -> str:
    if not finite(value):
        return "·"
    share = (value - low) / (high - low) if high > low else 0.5
    return _BLOCKS[round(min(max(share, 0.0), 1.0) * (len(_BLOCKS) - 1))]


def _scale(view: View) -> tuple[float, float]:
    """One scale for all curves, so that they compare; the worst tenth does not stretch it."""
    values = sorted(value for row in view.rows for value in row.curve if finite(value))
    if not values:
        return 0.0, 1.0
    tenth = len(values) // 10
    return (
        (values[tenth], values[-1])
        if view.direction == "maximize"
        else (values[0], values[-1 - tenth])
    )


def _time(view: View) -> RenderableType:
    grid = Table.grid(padding=(0, 1), expand=True)
    grid.add_column(no_wrap=True, ratio=2, overflow="ellipsis")
    grid.add_column(ratio=2)
    grid.add_column(no_wrap=True, justify="right")
    over = view.time_left <= 0
    done = min(max(view.duration - view.time_left, 0.0), view.duration)
    left = "deadline reached," if over else f"{_left(view)} left,"
    if view.ended and not over:
        left = "ended, deadline"
    until = view.deadline.strftime("%H:%M:%S")
    bar = ProgressBar(total=view.duration or 1.0, completed=done)
    grid.add_row(
        Text(view.study, style="bold"),
        bar,
        Text(f"{left} {until}", style="bold red" if over or view.time_left < 10 else "bold"),
    )
    return grid


def _best(view: View) -> Text:
    if not finite(view.best_value):
        return Text("best  none yet", style="bright_black")
    where = f"trial {view.best_trial}, step {view.best_step}"
    return Text.assemble("best  ", (figure(view.best_value), "bold green"), f"  {where}")


def _pool(view: View) -> Text:
    gate = ("open", "green") if view.gate_open else ("closed", "yellow")
    moves = f"{view.pauses} paused, {view.resumes} resumed, {view.resizes} resized"
    shared = view.slots_of_pool > view.slots_total
    pool = f" of {view.slots_of_pool} in the pool" if shared else ""
    slots = f"slots {view.slots_used}/{view.slots_total}{pool}  gate "
    return Text.assemble(slots, gate, f"  so far {moves}", no_wrap=True, overflow="ellipsis")


def _used(view: View) -> Text:
    if not view.slots_of_pool and not view.slot_hours:
        return Text("no worker offers a slot", style="bright_black")
    words = f"used  {view.slot_hours:.3g} slot-hours"
    if view.spent is not None:
        words += f", {view.spent:.4g} of {view.budget} spent"
    return Text(words, no_wrap=True, overflow="ellipsis")


def _shares(view: View) -> str:
    return "pool  " + ", ".join(f"{name}: {slots}" for name, slots in view.shares)


def _trials(view: View, rows: Iterable[TrialRow]) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), expand=True, header_style="bright_black")
    for name in ("trial", "slots", "step", "last", "best"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("curve", no_wrap=True, width=_CURVE)
    table.add_column("reason", no_wrap=True, overflow="ellipsis", ratio=1)
    low, high = _scale(view)
    for row in rows:
        colour = _COLOURS.get(row.state, "")
        mark = "bold" if row.number == view.best_trial else ""
        table.add_row(
            Text(str(row.number), style=mark),
            Text(str(row.slots or "-")),
            Text("-" if row.step is None else str(row.step)),
            Text(figure(row.value)),
            Text(figure(row.best), style=mark),
            Text(row.words, style=colour),
            Text(sparkline(row.curve, low, high), style=colour),
            Text(row.reason, style="bright_black"),
        )
    return table


def _states(rows: Iterable[TrialRow]) -> str:
    counts: dict[str, int] = {}
    for row in rows:
        counts[row.state] = counts.get(row.state, 0) + 1
    return ", ".join(f"{counts[s]} {s}" for s in _COLOURS if s in counts) or "no trials"


def _since(seconds: float) -> str:
    return f"{max(seconds, 0.0):6.1f} s"


def _blank(view: View) -> View:
    return View(view.study, view.time_left, view.deadline, view.duration)


@contextmanager
def polling_views(
    watcher: StudyWatcher, seconds: float, follow: Callable[[Iterator[View]], None]
) -> Iterator[None]:
    """Call a thread with views at intervals until the block ends, including the last state.

    After an error in the block there is no further view: its database may be unreachable.
    """
    ending = threading.Event()
    looks = _views(watcher, seconds, ending)
    thread = threading.Thread(target=follow, args=(looks,), daemon=True)
    thread.start()
    patience = 0.5
    try:
        yield
        patience = 10.0
    finally:
        ending.set()
        thread.join(patience)


def _views(watcher: StudyWatcher, seconds: float, ending: threading.Event) -> Iterator[View]:
    """Views; none while the database is unreachable or after the study was deleted."""
    going = True
    while going:
        going = not ending.wait(seconds)
        try:
            view = watcher.view()
        except DATABASE_ERRORS:
            continue
        except StudyGone:
            return  # the worker logs it
        yield view


_SECONDS = 0.5


def showing_study(
    watcher: StudyWatcher, console: Console, *, whole: bool = True
) -> AbstractContextManager[None]:
    """Show the study until the block ends, including the last state.

    Args:
        watcher: Reads the study.
        console: The output: live on a terminal or in a notebook, else in lines.
        whole: On a terminal, the whole screen; else one line.
    """
    if in_notebook():
        return polling_views(
            watcher, _SECONDS, lambda looks: show(render(view, _NOTEBOOK) for view in looks)
        )

    def on_terminal(looks: Iterator[View]) -> None:
        with Live(console=console, auto_refresh=False) as live:
            for view in looks:
                shown = render(view, console.height - 1) if whole else one_line(view)
                live.update(shown, refresh=True)

    def in_lines(looks: Iterator[View]) -> None:
        previous: View | None = None
        for view in looks:
            for line in lines(previous, view):
                console.print(printable(line), highlight=False, markup=False, soft_wrap=True)
            previous = view

    return polling_views(watcher, _SECONDS, on_terminal if console.is_terminal else in_lines)
