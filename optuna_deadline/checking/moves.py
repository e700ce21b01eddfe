"""The trainings of a check, and what their differences mean."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from optuna_deadline._numbers import format_count
from optuna_deadline.checking.inside import OTHER_DRAWS, OTHER_ROUNDING
from optuna_deadline.checking.rows import (
    ALIKE,
    ROUNDING,
    CheckResult,
    CheckRow,
    Gap,
    merged,
    row_of_gap,
    values_apart,
)
from optuna_deadline.checking.runs import Leg, TrainingRun, TrainingRuns
from optuna_deadline.errors import DeadlineError

STEPS = 12  #: if no number is given, and an epoch and a half would take too long
FEWEST = 5  #: the first step, one to move at, one to return, and the last
_SHORT = 20.0  # seconds that a training of an epoch and a half may take by default,
_BRIEF = 3.0  # and one of the fits after the first, of which there may be
_FITS = 3  # times the first one's steps
_CHAOS = 1e-3  # a difference that grows beyond this factor from a last digit is not rounding,
_DIGITS = 4.0  # or beyond this factor if there are few
_REPEATS = 5  # a reported value is one number, which one repetition can meet by chance
_SAME = "the same training does twice"

_VARIANTS = {
    OTHER_ROUNDING: "other rounding does",
    OTHER_DRAWS: "other random numbers (dropout, augmentation) do",
}

_SEED = (
    "Seed the generators that it makes itself, or draw from torch's, numpy's and Python's global"
    " ones; where kernels differ: torch.use_deterministic_algorithms(True)."
)
_KEEP = (
    "Keep what lasts longer than a step where a checkpoint holds it: in the module's buffers or"
    " on_save_checkpoint, or with ElasticLoop(..., name=state)."
)
_MEAN = (
    "Let the loss be a mean over its batch, call loop.model and loop.backward (ElasticLoop), and"
    " use norms over channels in place of batch norms; or let each trial have one"
    " slot: run(max_slots=1), or --max-slots 1."
)
_GROWS = "the batch grows with the slots by your wish (scaling=...)"
_WHOLE = (
    "Report a mean over the validation set, which each slot evaluates as a whole: no sum over"
    " slots (sync_dist=True with reduce_fx='sum')."
)


@dataclass(frozen=True)
class Noise:
    """The distance of repeated trainings for a harmless reason."""

    figure: float  #: in checkpoints
    values: float  #: in reported values
    words: str  #: the reason, for "no more than"
    digit: float = 0.0  #: the last digit of the computation, relative

    def at_least(self, other: Noise) -> Noise:
        """The larger one, with its reason."""
        words = self.words if self.figure > other.figure else other.words
        digit = max(self.digit, other.digit)
        return Noise(max(self.figure, other.figure), max(self.values, other.values), words, digit)


@dataclass(frozen=True)
class LeavePoints:
    """Where a training leaves."""

    last: int
    within: int  #: in the middle of an epoch
    report: int | None  #: right after a report
    back: int  #: from several slots
    later: int  #: after the report, in a later epoch or fit, if the training comes so far

    @property
    def away(self) -> int:
        """To several slots, before the report if there is one."""
        return self.within if self.report is None else max(1, min(self.within, self.report - 1))


def choose_steps(last: int, reported: list[int], fits: Sequence[int] = ()) -> LeavePoints:
    """Choose where to leave a training of ``last`` steps.

    Args:
        last: The last step of all trainings.
        reported: For each report, the number of steps before it.
        fits: For each fit after the first one, the number of steps before it.
    """
    ends = {step + 1 for step in reported}  # the read that follows a report is right there
    near = sorted(range(1, last), key=lambda step: abs(step - last / 3))
    within = next((one for one in near if one not in ends and one + 1 not in ends), near[0])
    report = next((one for one in sorted(ends) if 1 < one < last), None)
    back = max(2 * last // 3, within + 1, 0 if report is None else report + 1)
    # The effect of a hook at the end of an epoch shows after it only.
    begin, end = last if report is None else report + 1, last
    if fits and fits[0] + 2 < last:
        begin, end = fits[0] + 2, min(last, *fits[1:], last)
    others = [step for step in range(begin, end) if step not in ends and step + 1 not in ends]
    later = others[len(others) // 2] if others else within
    return LeavePoints(last, within, report, min(back, last - 1), later)


class Check:
    """Trains an objective undisturbed, paused and moved.

    Args:
        runs: Trains it.
        steps: The number of steps; None for an epoch and a half if that is short.
        slots: The number of slots of a moved training; 1 for pauses alone.
        tolerance: The relative difference up to which a move is exact.
        on_training: Called with the name of the next training, its steps, its number from 1, and
            the total if known.
    """

    def __init__(
        self,
        runs: TrainingRuns,
        *,
        steps: int | None = None,
        slots: int = 2,
        tolerance: float = ROUNDING,
        on_training: Callable[[str, int, int, int], None] = lambda *_: None,
    ) -> None:
        self._runs = runs
        self._asked = steps
        self._slots = slots
        self._tolerance = tolerance
        self._on_training = on_training
        self._noise = self._value_noise = 0.0
        self._begun, self._total = 0, 4 + (slots > 1)  # trainings
        self._grows = False  # whether the user wants longer steps on more slots
        self._length: int | None = None  # the steps of a full training, if it is so short

    def rows(self) -> Iterator[CheckRow]:
        """Each row as soon as it is known.

        Raises:
            DeadlineError: The objective raises, saves no checkpoint, or has too few steps.
        """
        still, steps = self._train_undisturbed()
        self._total -= steps.report is None
        yield self._train_twice(still, steps)
        yield self._paused(f"paused in an epoch (step {steps.later})", still, steps, steps.later)
        yield self._paused_at_a_report(still, steps)
        if self._slots > 1:
            yield from self._moved(still, steps)

    # ---- undisturbed

    def _train_undisturbed(self) -> tuple[TrainingRun, LeavePoints]:
        still = self._undisturbed(self._asked or STEPS)
        if self._asked is None:
            if not still.ended and (longer := _longer(still)) > len(still.positions):
                self._total += 1
                still = self._undisturbed(longer)
            if still.ended:  # no training can leave at the last one or two
                self._total += 1
                still = self._undisturbed(max(len(still.positions) - 2, FEWEST))
        if still.ended:
            there = max(len(still.positions) - 2, 0)
            steps = format_count(len(still.positions), "step")
            raise DeadlineError(
                f"The objective ends by itself after {steps}, and"
                f" {self._asked or FEWEST} were requested: "
                + (
                    f"use {there} or fewer, or let it train longer."
                    if there >= FEWEST
                    else "let it train longer, so that it can be interrupted."
                )
            )
        if still.checkpoint is None:
            raise DeadlineError(
                "The objective leaves at a directive, but saved no checkpoint to resume from:"
                " call segment.save(...) before segment.leave()."
            )
        reported = [before for before, *_ in still.reported]
        return still, choose_steps(len(still.positions), reported, still.fits)

    def _undisturbed(self, last: int) -> TrainingRun:
        still = self._train("undisturbed", Leg(1, last))
        self._refuse(still)
        self._length = len(still.positions) if still.ended else self._length
        return still

    def _refuse(self, run: TrainingRun) -> None:
        if run.refusal is not None:
            raise DeadlineError(
                f"On one slot, undisturbed, the objective is refused: {run.refusal}"
            )
        if run.crash is not None:
            raise DeadlineError(
                "On one slot, undisturbed, the objective fails:"
                f" {run.crash.rstrip('.')}{_place(run.trace)}."
            )
        if not run.looked:
            raise DeadlineError(
                "The objective never uses its segment, so it can be neither paused nor moved:"
                " its trials train to their end on one slot. Add DeadlineCallback to its Trainer,"
                " or write its loops with ElasticLoop."
            )
        if not run.positions:
            raise DeadlineError(
                "The objective never checks whether to leave: call segment.directive() between"
                " its steps, save and leave."
            )

    def _train_twice(self, still: TrainingRun, steps: LeavePoints) -> CheckRow:
        name = "undisturbed, twice"
        run = self._train(name, Leg(1, steps.last))
        if (row := _trouble(name, run, "")) is not None:
            return row
        gap = self._gap(still, run)
        self._grows = gap.grows
        self._noise = _finite(gap.figure)
        self._value_noise = _finite(values_apart(still.values, run.values).figure)
        row = row_of_gap(name, gap, advice=_SEED)
        if row.result is CheckResult.DIFFERS and not gap.unlike:
            return CheckRow(name, row.result, row.words, _SEED, row.figure, excused=True)
        return row

    # ---- paused

    def _paused(self, name: str, still: TrainingRun, steps: LeavePoints, at: int) -> CheckRow:
        run = self._train(name, Leg(1, at), Leg(1, steps.last))
        if (
            row := _trouble(name, run, "Mend that: a trial that is paused is lost by it.")
        ) is not None:
            return row
        return row_of_gap(name, self._gap(still, run), noise=self._noise, advice=_KEEP)

    def _paused_at_a_report(self, still: TrainingRun, steps: LeavePoints) -> CheckRow:
        if steps.report is not None:
            name = f"paused at a report (step {steps.report})"
            return self._paused(name, still, steps, steps.report)
        return CheckRow("paused at a report", CheckResult.NOT_TRIED, self._no_report(still))

    # ---- moved

    def _moved(self, still: TrainingRun, steps: LeavePoints) -> Iterator[CheckRow]:
        away, back, slots = steps.away, steps.back, self._slots
        name = f"moved to {slots} slots and back (steps {away}, {back})"
        why = _GROWS if self._grows else ""
        if still.limit is not None and still.limit[0] < slots:
            why = still.limit[1]
        if why:
            yield CheckRow(name, CheckResult.NOT_TRIED, why)
            return
        legs = Leg(1, away), Leg(slots, back), Leg(1, steps.last)
        run = self._train(name, *legs)
        on_more = f"reported on {slots} slots"
        stays = "Its trials stay on one slot; to share steps between slots, mend that."
        if (row := _trouble(name, run, stays)) is not None:
            yield row
            yield CheckRow(on_more, CheckResult.NOT_TRIED, "it did not come so far")
            return
        gap = self._gap(still, run).without_optimizer()
        values = self._values_on_more(still, run)
        noise = Noise(self._noise, self._value_noise, _SAME)
        rounding = Noise(self._tolerance, self._tolerance, "")
        if max(gap.figure, values.figure) > max(self._tolerance, ALIKE * self._noise):
            measured = self._noise_of(OTHER_ROUNDING, still, steps, gap, values)
            if measured.figure < max(_CHAOS, _DIGITS * measured.digit) and not self._noise:
                rounding = measured.at_least(rounding)
            if gap.figure > ALIKE * rounding.figure or values.figure > ALIKE * rounding.values:
                drawn = self._noise_of(OTHER_DRAWS, still, steps, gap, values)
                noise = drawn.at_least(noise)
        row = row_of_gap(
            name,
            gap,
            tolerance=_several(rounding.figure, self._tolerance),
            noise=noise.figure,
            noise_is=noise.words,
            advice=_MEAN,
        )
        yield row
        if not values.parts:
            yield CheckRow(on_more, CheckResult.NOT_TRIED, self._no_report(still))
            return
        yield row_of_gap(
            on_more,
            values,
            tolerance=_several(rounding.values, self._tolerance),
            noise=noise.values,
            noise_is=noise.words,
            advice="It follows from the weights." if row.bad else _WHOLE,
        )

    def _noise_of(
        self, variant: str, still: TrainingRun, steps: LeavePoints, gap: Gap, values: Gap
    ) -> Noise:
        """The distance of repeated trainings for a harmless reason.

        It is repeated until it explains the values as well, if it explains the weights.
        """
        noise = Noise(0.0, 0.0, _VARIANTS[variant])
        for number in range(1, _REPEATS + 1):
            found = self._noise_once(variant, number, still, steps)
            noise = found.at_least(noise)
            if not found.values or values.figure <= ALIKE * noise.values:
                break
            if gap.figure > ALIKE * noise.figure:
                break
        return noise

    def _noise_once(
        self, variant: str, number: int, still: TrainingRun, steps: LeavePoints
    ) -> Noise:
        words = _VARIANTS[variant]
        self._total += 1
        name = "undisturbed, with " + words.rpartition(" ")[0]
        run = self._train(name, Leg(1, steps.last), variant=(variant, number))
        if not run.whole:
            return Noise(0.0, 0.0, words)
        figure = self._gap(still, run).without_optimizer().figure
        values = values_apart(still.values, run.values).figure
        return Noise(_finite(figure), _finite(values), words, run.digit)

    def _values_on_more(self, still: TrainingRun, run: TrainingRun) -> Gap:
        there = {step for _, step, slots in run.reported if slots > 1}
        if not there:
            return Gap()
        return values_apart(
            {step: value for step, value in still.values.items() if step in there},
            {step: value for step, value in run.values.items() if step in there},
        )

    # ---- internal

    def _train(self, name: str, *legs: Leg, variant: tuple[str, int] | None = None) -> TrainingRun:
        self._begun += 1
        self._on_training(name, legs[-1].leave_at, self._begun, self._total)
        return self._runs.train(*legs, variant=variant)

    def _no_report(self, still: TrainingRun) -> str:
        """Why there is no report to compare, and what to change."""
        if self._length is not None:
            steps = format_count(self._length, "step")
            return f"the training ends with its first report, after {steps}"
        wanted = _epoch_and_a_half(still)
        more = "ask for more with --steps" if wanted is None else f"--steps {wanted} has one"
        return f"no report lies within {format_count(len(still.positions), 'step')}; {more}"

    def _gap(self, still: TrainingRun, run: TrainingRun) -> Gap:
        on_one = {step for _, step, slots in run.reported if slots == 1 or self._slots == 1}
        values = values_apart(
            {step: value for step, value in still.values.items() if step in on_one},
            {step: value for step, value in run.values.items() if step in on_one},
        )
        missing = still.values.keys() - run.values.keys()
        unlike = (f"step {min(missing)} is never reported",) if missing else ()
        return merged([self._runs.gap(still, run), values, Gap(unlike=unlike)])


def _finite(figure: float) -> float:
    return figure if math.isfinite(figure) else 0.0


def _several(rounding: float, tolerance: float) -> float:
    """The gap up to which a difference is rounding: as measured, or the tolerance."""
    return tolerance if rounding <= tolerance else ALIKE * rounding


def _longer(still: TrainingRun) -> int:
    """The steps of a training that shows more than a first one, if that is short."""
    count, epoch, per_step = len(still.positions), _epoch_and_a_half(still), _per_step(still)
    if epoch is None or per_step is None:
        return count
    seconds = still.seconds / (count - 1)
    fit = 0 if still.horizon is None else math.ceil(still.horizon / per_step)
    if fit and seconds * _FITS * fit <= _BRIEF:
        return _FITS * fit
    reports = any(one[0] + 1 < count for one in still.reported)
    return count if reports or seconds * epoch > _SHORT else epoch


def _epoch_and_a_half(still: TrainingRun) -> int | None:
    """The steps of an epoch and a half with a report; None if their length is unknown."""
    per_step = _per_step(still)
    return None if per_step is None else math.ceil(1.5 / per_step) + 2


def _per_step(still: TrainingRun) -> float | None:
    """The part of a report that a step trains; None if that is unknown."""
    if len(still.positions) < 2 or still.positions[-1] <= still.positions[0]:
        return None
    return (still.positions[-1] - still.positions[0]) / (len(still.positions) - 1)


def _trouble(name: str, run: TrainingRun, advice: str) -> CheckRow | None:
    if run.refusal is not None:
        return CheckRow(name, CheckResult.REFUSED, run.refusal)
    if run.crash is not None:
        return CheckRow(name, CheckResult.CRASHED, f"{run.crash}{_place(run.trace)}", advice)
    if run.ended:
        return CheckRow(name, CheckResult.DIFFERS, "it ends earlier than undisturbed", _KEEP)
    if run.checkpoint is None:
        return CheckRow(name, CheckResult.CRASHED, "it leaves without a checkpoint", advice)
    return None


def _place(trace: str) -> str:
    """Where an error was raised, in the user's own code if it is in the trace."""
    places = re.findall(r'File "([^"]+)", line (\d+)', trace)
    own = [
        one for one in places if "site-packages" not in one[0] and "optuna_deadline" not in one[0]
    ]
    if not own:
        return ""
    file, line = own[-1]
    return f" ({file.rpartition('/')[2]}, line {line})"
