"""The allocation table of planner, agent and views, with its guarantees.

Every method that writes is one transition: it happens as a whole or not at all, together with its
event. A call whose answer was lost may be repeated; each method documents the effect. The suite in
``tests/allocation/suite`` checks every guarantee.
"""

from __future__ import annotations

from optuna_deadline.allocation.table.base import GRACE, TTL
from optuna_deadline.allocation.table.requests import Requests

__all__ = ["GRACE", "TTL", "AllocationTable"]


class AllocationTable(Requests):
    """The table of one pool for one study: see :class:`~.base.Base` for its arguments."""
