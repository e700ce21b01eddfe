"""Public names under the modules where they were before: each imports, warns, and is the same."""

from __future__ import annotations

import importlib
import pickle
import re
import sys

import pytest

from optuna_deadline._moved import MOVED

#: What the documentation and each ``__all__`` named, or pickled studies hold, from where it was.
NAMES = [
    "optuna_deadline.dashboard.page.wsgi",
    "optuna_deadline.deadlines.Deadline",
    "optuna_deadline.deadlines.parse_deadline",
    "optuna_deadline.elastic.terms.agree",
    "optuna_deadline.elastic.terms.check",
    "optuna_deadline.elastic.terms.check_max_slots",
    "optuna_deadline.elastic.terms.prepare",
    "optuna_deadline.outlook.answers.Gain",
    "optuna_deadline.outlook.answers.Prospect",
    "optuna_deadline.outlook.answers.WhatIf",
    "optuna_deadline.policies.asha.Asha",
    "optuna_deadline.policies.asha.AshaPromote",
    "optuna_deadline.policies.dividing.Divider",
    "optuna_deadline.policies.dividing.EvenDivider",
    "optuna_deadline.policies.dividing.PoolSnapshot",
    "optuna_deadline.policies.dividing.StudyView",
    "optuna_deadline.policies.early.Median",
    "optuna_deadline.policies.early.OneEpoch",
    "optuna_deadline.policies.fifo.Fifo",
    "optuna_deadline.policies.halving.Hyperband",
    "optuna_deadline.policies.halving.SuccessiveHalving",
    "optuna_deadline.policies.hypersched.HyperSched",
    "optuna_deadline.policies.market.AlloX",
    "optuna_deadline.policies.market.Allocation",
    "optuna_deadline.policies.market.Allocator",
    "optuna_deadline.policies.market.FinishTimeFair",
    "optuna_deadline.policies.market.GandivaFair",
    "optuna_deadline.policies.market.JobView",
    "optuna_deadline.policies.market.Market",
    "optuna_deadline.policies.market.MaxMinFair",
    "optuna_deadline.policies.market.MaxThroughput",
    "optuna_deadline.policies.market.MinTotalDuration",
    "optuna_deadline.policies.market.Regime",
    "optuna_deadline.policies.market.Round",
    "optuna_deadline.policies.market.Scheduler",
    "optuna_deadline.policies.market.Shares",
    "optuna_deadline.policies.market.Shockwave",
    "optuna_deadline.policies.market.StudyMarket",
    "optuna_deadline.policies.market.Window",
    "optuna_deadline.policies.market.allocators.FinishTimeFair",
    "optuna_deadline.policies.market.allocators.GandivaFair",
    "optuna_deadline.policies.market.allocators.MaxMinFair",
    "optuna_deadline.policies.market.allocators.MaxThroughput",
    "optuna_deadline.policies.market.allocators.MinTotalDuration",
    "optuna_deadline.policies.market.allox.AlloX",
    "optuna_deadline.policies.market.shares.Allocation",
    "optuna_deadline.policies.market.shares.Allocator",
    "optuna_deadline.policies.market.shares.Shares",
    "optuna_deadline.policies.market.shockwave.Shockwave",
    "optuna_deadline.policies.market.shockwave.Window",
    "optuna_deadline.policies.market.studies.StudyMarket",
    "optuna_deadline.policies.market.views.JobView",
    "optuna_deadline.policies.market.views.Market",
    "optuna_deadline.policies.market.views.Regime",
    "optuna_deadline.policies.market.views.Round",
    "optuna_deadline.policies.market.views.Scheduler",
    "optuna_deadline.policies.money.Money",
    "optuna_deadline.policies.naive.NaiveElastic",
    "optuna_deadline.policies.plan.Pause",
    "optuna_deadline.policies.plan.Plan",
    "optuna_deadline.policies.plan.Policy",
    "optuna_deadline.policies.plan.Retire",
    "optuna_deadline.policies.plan.Run",
    "optuna_deadline.policies.seer.Seer",
    "optuna_deadline.policies.shockwave.ShockwaveStudy",
    "optuna_deadline.policies.slaq.Slaq",
    "optuna_deadline.policies.snapshot.Report",
    "optuna_deadline.policies.snapshot.Snapshot",
    "optuna_deadline.policies.snapshot.TrialView",
    "optuna_deadline.policies.turns.LeastAttainedService",
    "optuna_deadline.policies.turns.RoundRobin",
    "optuna_deadline.prices.Price",
    "optuna_deadline.prices.read_prices",
    "optuna_deadline.pruners._book.ProcessClock",
    "optuna_deadline.samplers._situation.Situation",
    "optuna_deadline.samplers._situation.TableLook",
    "optuna_deadline.samplers._wrapper.OfTrial",
    "optuna_deadline.simulation.families.generate",
    "optuna_deadline.simulation.outcome.Outcome",
    "optuna_deadline.simulation.provider.Funding",
    "optuna_deadline.simulation.simulation.Simulation",
    "optuna_deadline.simulation.simulation.simulate",
    "optuna_deadline.simulation.tables.prices.Price",
]


@pytest.mark.parametrize("old", sorted(MOVED))
def test_an_old_module_imports_and_warns(old: str) -> None:
    sys.modules.pop(old, None)
    with pytest.warns(DeprecationWarning, match=re.escape(f"{old} is {MOVED[old]} now.")):
        importlib.import_module(old)


def test_renamed_public_names_warn() -> None:
    tables = importlib.import_module("optuna_deadline.simulation.tables")
    with pytest.warns(DeprecationWarning, match=r"tables\.Price is .*tables\.InstancePrice now"):
        assert tables.Price is tables.InstancePrice
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = tables.Nothing


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", NAMES)
def test_an_old_name_is_the_object_of_the_new_one(name: str) -> None:
    module, _, attribute = name.rpartition(".")
    found = getattr(importlib.import_module(module), attribute)
    home = getattr(found, "__module__", MOVED.get(module, module))
    assert getattr(importlib.import_module(home), attribute) is found
    assert pickle.loads(f"c{module}\n{attribute}\n.".encode()) is found  # as older pickles say
