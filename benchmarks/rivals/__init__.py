"""Rivals of the benchmarks, which the product does not contain.

Policies are loaded as users load their own: by ``FILE.py:NAME``, as in
``optuna-deadline simulate --policy benchmarks/rivals/slaq.py:Slaq``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from optuna_deadline.policies import Policy
from optuna_deadline.study import policy_choice

_HERE = Path(__file__).parent

#: The place of each policy.
RIVALS = {
    "least_attained_service": f"{_HERE / 'least_attained_service.py'}:LeastAttainedService",
    "naive_elastic": f"{_HERE / 'naive_elastic.py'}:NaiveElastic",
    "one_epoch": f"{_HERE / 'one_epoch.py'}:OneEpoch",
    "slaq": f"{_HERE / 'slaq.py'}:Slaq",
}


def make_policy(name: str, parameters: Mapping[str, Any]) -> Policy:
    """A rival, or a policy of the product, by its name.

    Raises:
        DeadlineError: There is no such policy, or it does not accept a parameter.
    """
    return policy_choice.make(RIVALS.get(name, name), parameters)
