"""Checks that a trial resumes with the order of samples that it was trained with.

A checkpoint names a position in an epoch. The position has the same meaning only if the epoch has
the same batches in every segment and every rank. So a checkpoint holds a fingerprint of the
batches before it and a digest of the data, and training starts only if the loader has them again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from optuna_deadline.errors import DeadlineError
from optuna_deadline_torch.consensus import Consensus
from optuna_deadline_torch.sampler import ElasticBatchSampler

_MEND = (
    "let it follow from the epoch alone, by a method of the sampler such as"
    " `def set_epoch(self, epoch): self.rng = numpy.random.default_rng(epoch)`"
)


def draws_otherwise(kind: str) -> DeadlineError:
    """The error for a sampler whose order does not follow from the epoch."""
    return DeadlineError(
        f"The training loader's {kind} draws another order when it is asked for the same epoch"
        f" again, so a trial that resumes would miss samples and see others twice: {_MEND}, or"
        " draw with torch's, numpy's or Python's global random numbers, which are seeded for each"
        " epoch."
    )


def fingerprints(
    samplers: Sequence[ElasticBatchSampler],
    epoch: int,
    batch: int,
    slots: int,
    *,
    lasting: bool = False,
) -> dict[str, Any]:
    """The fingerprints in a checkpoint, in plain numbers and texts.

    Args:
        samplers: Of the training's loaders.
        epoch: The next epoch.
        batch: The next batch of it.
        slots: Of the segment.
        lasting: Whether all epochs have the same data.
    """
    loaders = []
    for sampler in samplers:
        drawn = sampler.drawn_before(epoch, batch) if batch else None
        loaders.append(
            {
                "size": sampler.batch_size if isinstance(sampler.batch_size, int) else None,
                "batches": None if drawn is None else len(drawn.whole),
                "dealt": None if drawn is None else drawn.digest(),
                "data": sampler.data if batch or lasting else None,
            }
        )
    return {"slots": slots, "loaders": loaders}


def refuse_another_order(
    samplers: Sequence[ElasticBatchSampler],
    epoch: int,
    batch: int,
    *,
    consensus: Consensus,
    saved: dict[str, Any] | None,
) -> None:
    """Refuse batches that differ from those of other ranks or of earlier segments.

    Every rank calls it, before its first step.

    Args:
        samplers: Of the training's loaders.
        epoch: The next epoch.
        batch: The next batch of it.
        consensus: Of the ranks.
        saved: The :func:`fingerprints` of the checkpoint; None if it has none.

    Raises:
        DeadlineError: They differ.
    """
    for sampler in samplers:
        if not sampler.draws_alike(epoch):
            raise draws_otherwise(sampler.kind)
        ranks = consensus.world_size
        if ranks > 1 and not consensus.all_equal(sampler.drawn_before(epoch, None).number()):
            raise DeadlineError(
                f"The training loader's {sampler.kind} draws another order in each of the"
                f" trial's {ranks} slots, which share each batch: {_MEND}, and pass"
                " the same data in every slot."
            )
    if saved is not None:
        now = fingerprints(samplers, epoch, batch, consensus.world_size, lasting=True)
        for sampler, one, other in zip(samplers, saved["loaders"], now["loaders"], strict=False):
            _compare(sampler, epoch, one, other, (saved["slots"], now["slots"]))


def refuse_undealt(samplers: Sequence[ElasticBatchSampler]) -> None:
    """Refuse a batch of a loader that was not distributed; call with the first one.

    Raises:
        DeadlineError: No loader has used its elastic sampler.
    """
    if samplers and not any(sampler.asked for sampler in samplers):
        raise DeadlineError(
            "The training loader yields batches without its batch_sampler, so they are not"
            " dealt to the slots: let its __iter__ use super().__iter__(), or pass an ordinary"
            " DataLoader."
        )


def _compare(
    sampler: ElasticBatchSampler,
    epoch: int,
    saved: dict[str, Any],
    now: dict[str, Any],
    slots: tuple[int, int],
) -> None:
    before, size = saved["size"], now["size"]
    begun = saved["dealt"] is not None  # another epoch may have its own loader
    if before != size and (begun or _divided(before, size, *slots)):
        raise DeadlineError(
            f"The training loader has batches of {size} samples on {slots[1]} slots, and the"
            f" trial's checkpoint is of batches of {before} on {slots[0]}: pass the batch size of"
            " the whole step (`batch_size=64`, not `batch_size=64 // world_size`), since each"
            " batch is dealt to the slots."
        )
    if begun and saved["batches"] != now["batches"]:
        raise DeadlineError(
            f"Epoch {epoch} has {now['batches']} batches, and it had {saved['batches']} when the"
            " trial's checkpoint was made: build the training loader from the same data, with the"
            " same batch size, in every segment."
        )
    if saved["data"] is not None and saved["data"] != now["data"]:
        raise DeadlineError(
            "The training data is not what it was when the trial's checkpoint was made: read or"
            " make the same in every segment, or keep what it depends on in on_save_checkpoint or"
            " in the loop's state."
        )
    if begun and saved["dealt"] != now["dealt"]:
        raise DeadlineError(
            f"The order of samples that {sampler.kind} draws for epoch {epoch} is not the one that"
            f" the trial was trained with until its checkpoint: {_MEND}, and build the training"
            " loader from the same data in every segment."
        )


def _divided(before: int | None, size: int | None, slots_before: int, slots: int) -> bool:
    """Whether one batch was divided by the slots, in either segment."""
    if before is None or size is None or slots_before == slots:
        return False
    whole = max(before * slots_before, size * slots)  # the smaller of the two
    return whole // slots_before == before and whole // slots == size
