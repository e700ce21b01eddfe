"""Partial epoch means and metrics, for an epoch that is resumed in its middle.

Lightning keeps neither the sums of ``self.log(..., on_epoch=True)`` nor the states of torchmetrics
in its checkpoints. Without them, an epoch's mean would cover only the batches after the resume.
The ranks' sums are added when they are saved, and shared out again when training resumes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import lightning.pytorch as pl
import torch
from optuna_deadline_torch.consensus import Consensus
from optuna_deadline_torch.measures import UpdateCount, measured_whole
from optuna_deadline_torch.packing import Unpackable, packed, unpacked
from optuna_deadline_torch.saver import copied
from torchmetrics import Metric, MetricCollection
from torchmetrics.aggregation import SumMetric
from torchmetrics.utilities.data import (
    dim_zero_cat,
    dim_zero_max,
    dim_zero_mean,
    dim_zero_min,
    dim_zero_sum,
)
from torchmetrics.wrappers import MetricTracker
from torchmetrics.wrappers.abstract import WrapperMetric

_log = logging.getLogger(__name__)
_OF_METRICS = vars(SumMetric()).keys() | {
    "window"
}  # attributes that each metric has, or is made with
_told: set[str] = set()  # the names of sums and extremes, once in a segment
_SUMS = (
    "The sums that training logs (%s) are added up over the slots: let each be a sum over samples."
    " A sum of batch means or a count of batches grows with the slots: log it as a mean."
)
_EXTREMES = (
    "The extremes that training logs (%s) are taken over the slots: let each be an extreme over"
    " samples. That of batch means is another one on several slots."
)

_SETTINGS = (
    "fx",
    "name",
    "prog_bar",
    "logger",
    "on_step",
    "on_epoch",
    "enable_graph",
    "add_dataloader_idx",
    "metric_attribute",
)
_KINDS = {
    dim_zero_sum: "sum",
    dim_zero_cat: "cat",
    dim_zero_mean: "mean",
    dim_zero_max: "max",
    dim_zero_min: "min",
}


def state(trainer: pl.Trainer, consensus: Consensus) -> dict[str, Any]:
    """The logged values and metrics of all ranks in this epoch; every rank calls it.

    Returns:
        Plain numbers, texts and tensors: those of all ranks in rank 0, which writes.
    """
    own = {"logged": dict(_logged(trainer)), "metrics": dict(_measured(trainer))}
    if trainer.world_size > 1:
        own = merged(consensus.gather(_on_cpu(own)))
    modules = trainer.lightning_module.named_modules()
    trackers = {name: len(one) for name, one in modules if isinstance(one, MetricTracker)}
    return {**own, "trackers": trackers}


def combine(trainer: pl.Trainer, consensus: Consensus) -> None:
    """Combine the means and sums of an epoch that ends over all slots; every rank calls it.

    A module that is written for one slot logs them without ``sync_dist=True``: each rank would
    stop early, and keep checkpoints, by its own part of the batches alone.
    """
    if trainer.world_size == 1:
        return
    own = {
        key: entry
        for key, entry in _logged(trainer)
        if entry["value"] is not None and entry["on_epoch"] and not entry["rank_zero_only"]
    }
    whole = merged(consensus.gather(_on_cpu({"logged": own, "metrics": {}})))["logged"]
    for key in own:
        one, value = trainer.fit_loop.epoch_loop._results[key], whole[key]["value"]
        samples = whole[key]["samples"]
        one._computed = (value if samples is None else value / samples).to(one.value)
    for kinds, text in ({"sum"}, _SUMS), ({"max", "min"}, _EXTREMES):
        names = {entry["name"] for entry in own.values() if entry["reduce_fx"] in kinds}
        if trainer.is_global_zero and (new := sorted(names - _told)):
            _told.update(new)
            _log.warning(text, ", ".join(new))


def restore(trainer: pl.Trainer, saved: Mapping[str, Any]) -> None:
    """Restore them in the epoch; call in ``on_train_start``.

    Args:
        trainer: The trainer.
        saved: The result of :func:`state`; empty if the checkpoint has none.
    """
    if not saved:
        return
    rank, ranks = trainer.global_rank, trainer.world_size
    for name, module in [*trainer.lightning_module.named_modules()]:
        while isinstance(module, MetricTracker) and len(module) < saved["trackers"].get(name, 0):
            module.increment()
    modules = dict(trainer.lightning_module.named_modules())
    for name, metric in modules.items():
        if isinstance(metric, Metric):
            _put_back(name, metric, saved["metrics"].get(name), rank, ranks)
    for key, entry in saved["logged"].items():
        if rank == 0 or not entry["rank_zero_only"]:
            _log_again(trainer, key, modules, share(entry, ranks))
    # Otherwise Lightning takes the first batch here for the first of its epoch and resets them.
    trainer._logger_connector._first_loop_iter = False


def merged(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The state of several ranks, as one rank would have it."""
    whole: dict[str, Any] = {"logged": {}, "metrics": {}}
    for kind, merge in (("logged", _merged_entry), ("metrics", _merged_metric)):
        for name in dict.fromkeys(name for part in parts for name in part[kind]):
            whole[kind][name] = merge([part[kind][name] for part in parts if name in part[kind]])
    return whole


def share(entry: Mapping[str, Any], ranks: int) -> dict[str, Any]:
    """The part of each rank, so that together they have what was logged."""
    value, samples = entry["value"], entry["samples"]
    parts = 1 if entry["rank_zero_only"] else ranks
    if value is not None and entry["on_epoch"] and entry["reduce_fx"] in ("mean", "sum"):
        value = value / parts if parts > 1 else value
    if samples is not None:
        samples = samples / parts if parts > 1 else samples.round().to(torch.int64)
    return {**entry, "value": value, "samples": samples}


# ---- sums of self.log


def _logged(trainer: pl.Trainer) -> Iterator[tuple[str, dict[str, Any]]]:
    for key, one in trainer.fit_loop.epoch_loop._results.items():
        meta = one.meta
        if one.has_reset:
            continue
        last = one._forward_cache
        yield (
            key,
            {
                **{name: getattr(meta, name) for name in _SETTINGS},
                "reduce_fx": meta.reduce_fx.__name__,
                "sync": meta.sync.should,
                "rank_zero_only": meta.sync.rank_zero_only,
                "value": one.value.detach() if one.is_tensor else None,
                "samples": (
                    one.cumulated_batch_size.detach().double()
                    if one.is_tensor and meta.is_mean_reduction
                    else None
                ),
                "last": last.detach() if isinstance(last, torch.Tensor) else None,
            },
        )


def _merged_entry(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    first = dict(entries[0])
    if first["value"] is not None and first["on_epoch"]:
        values = torch.stack([entry["value"] for entry in entries])
        first["value"] = _reduced(values, first["reduce_fx"].replace("mean", "sum"))
    if first["samples"] is not None:
        first["samples"] = sum(entry["samples"] for entry in entries)
    return first


def _log_again(
    trainer: pl.Trainer, key: str, modules: Mapping[str, Any], entry: Mapping[str, Any]
) -> None:
    """Log a value in the way of the segment before, and give it what it had there."""
    device = trainer.strategy.root_device
    if entry["value"] is not None:
        value = entry["value"].to(device, copy=True)
    elif not isinstance(value := modules.get(entry["metric_attribute"]), Metric):
        return
    results = trainer.fit_loop.epoch_loop._results
    results.log(
        **{name: entry[name] for name in _SETTINGS},
        value=value,
        reduce_fx=getattr(torch, entry["reduce_fx"]),
        sync_dist_fn=trainer.strategy.reduce,
        rank_zero_only=entry["rank_zero_only"],
        batch_size=1,
    )
    one = results[key]
    one.meta.sync.should = entry["sync"] and trainer.world_size > 1
    one.meta.__class__ = _as_logged_next(type(one.meta))
    if one.is_tensor:
        one.value = value
        if entry["samples"] is not None:
            one.cumulated_batch_size = entry["samples"].to(device, copy=True)
    one._forward_cache = None if entry["last"] is None else entry["last"].to(device)


def _as_logged_next(kind: type) -> type:
    """Log options as far as a checkpoint knows them; the next ``log`` adds the rest.

    On one slot Lightning forgets ``sync_dist``, which matters again on two.
    """

    def differs(self: Any, other: object) -> bool:
        self.__dict__.update(vars(other))
        self.__class__ = kind
        return False

    return type("LoggedBefore", (kind,), {"__ne__": differs})


# ---- torchmetrics


def _measured(trainer: pl.Trainer) -> Iterator[tuple[str, dict[str, Any]]]:
    # Those of a validation, which Lightning resets as soon as it has ended.
    results = trainer.fit_loop.epoch_loop.val_loop._results.values()
    ending = {id(one.value) for one in results if not (one.is_tensor or one.has_reset)}
    modules = list(trainer.lightning_module.named_modules())
    for _, module in modules:
        if isinstance(module, MetricCollection):  # else metrics that share a state have old ones
            module.items(keep_base=True, copy_state=False)
    for name, metric in modules:
        plain = _own_attributes(metric)
        measured = isinstance(metric, Metric) and (metric.update_called or plain)
        if measured and id(metric) not in ending:
            states = metric.metric_state
            kinds = {one: _kind(metric._reductions[one], states[one]) for one in states}
            yield (
                name,
                {
                    "states": {one: _plain(value) for one, value in states.items()},
                    "kinds": kinds,
                    "plain": plain,
                    "updates": int(metric.update_count),
                    "whole": measured_whole(metric),
                },
            )


def _own_attributes(module: Any) -> dict[str, Any]:
    """Attributes of a wrapper of metrics outside its states, such as extremes and counts."""
    own = {}
    if isinstance(module, WrapperMetric):
        for name in vars(module).keys() - _OF_METRICS - module.metric_state.keys():
            with suppress(Unpackable):
                own[name] = packed(getattr(module, name))
    return own


def _kind(reduction: Any, value: Any) -> str:
    if reduction is None and isinstance(value, list):
        return "cat"
    return _KINDS.get(reduction, "other")


def _plain(value: Any) -> Any:
    return [*value] if isinstance(value, list) else value.detach()


def _merged_metric(metrics: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    first = metrics[0]
    if first["whole"]:  # every rank has the same measurement
        return dict(first)
    states: dict[str, Any] = {}
    for one, kind in first["kinds"].items():
        values = [metric["states"][one] for metric in metrics]
        if kind == "cat" and isinstance(values[0], list):
            states[one] = [item for value in values for item in value]
        elif kind == "cat":
            states[one] = torch.cat(values)
        elif kind == "other":
            states[one] = values[0]
        else:
            states[one] = _reduced(torch.stack(values), kind)
    return {**first, "states": states, "updates": sum(metric["updates"] for metric in metrics)}


def _put_back(
    name: str, metric: Metric, saved: Mapping[str, Any] | None, rank: int, ranks: int
) -> None:
    if saved is None:
        metric.reset()  # a module's checkpoint has a persistent one before its reset
        return
    whole, plain = saved["whole"], saved["plain"]
    other = plain or "other" in saved["kinds"].values()
    if ranks > 1 and rank == 0 and not whole and other:
        _log.warning(
            "The metric %r combines the values of several slots in its own way, which a"
            " trial that moves within an epoch cannot reproduce: its value of this epoch"
            " may differ. Measure it in validation.",
            name,
        )
    metric.reset()
    for attribute, node in plain.items():
        setattr(metric, attribute, unpacked(node, metric.device))
    updates = saved["updates"]
    if not whole:
        updates = max(min(updates, 1), round(updates / ranks))
    metric._update_count = UpdateCount.of(updates, whole)
    for one, value in saved["states"].items():
        if rank and not whole and saved["kinds"][one] not in ("mean", "max", "min"):
            continue  # rank 0 has it all, and the ranks' states are added
        if isinstance(value, list):
            device = "cpu" if metric.compute_on_cpu else metric.device
            setattr(metric, one, [item.to(device, copy=True) for item in value])
        else:
            setattr(metric, one, value.to(metric.device, copy=True))


def _on_cpu(own: dict[str, Any]) -> Any:
    return copied(own, lambda one: one.detach().cpu())


def _reduced(values: torch.Tensor, kind: str) -> torch.Tensor:
    if kind == "max":
        return values.amax(0)
    if kind == "min":
        return values.amin(0)
    return values.sum(0) if kind == "sum" else values.mean(0)
