"""One agent on each node: started where a node comes, given up where Ray says that it has died."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from optuna_deadline.elastic import Result
from optuna_deadline.errors import DeadlineError
from optuna_deadline_ray.agents import Job, start
from optuna_deadline_ray.nodes import Node

_logger = logging.getLogger("optuna_deadline")

_FAREWELL = 40.0  # seconds for trials to be saved


@dataclass
class _Member:
    node: Node
    actor: Any
    work: Any
    leaving: bool = False


class Fleet:
    """The agents of a study.

    Args:
        job: What they work at.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._members: dict[str, _Member] = {}
        self._resting: set[str] = set()  # nodes that the study did not want
        self.result: Result | None = None  #: once the study is settled

    @property
    def nodes(self) -> list[Node]:
        """Those that have an agent that stays."""
        return [m.node for m in self._members.values() if not m.leaving]

    def keep(self, present: Sequence[Node], resting: bool = False) -> None:
        """Start agents on nodes that came; forget those of nodes that died.

        Args:
            present: The nodes that live.
            resting: Whether nodes of which the study let go stay without an agent.
        """
        alive = {node.id for node in present}
        for member in [m for m in self._members.values() if m.node.id not in alive]:
            _end(member)
            _logger.warning(
                "Ray node %s has died; its trials go on elsewhere when their lease is over.",
                member.node.host,
            )
            del self._members[member.node.id]
        if not resting:
            self._resting.clear()
        for node in present:
            if node.id not in self._members and node.id not in self._resting:
                _logger.info("Ray node %s brings %d slots.", node.host, node.slots)
                self._members[node.id] = _Member(node, *start(self._job, node))

    def hear(self) -> None:
        """Take what agents that have ended returned.

        Raises:
            DeadlineError: An agent says that it cannot work, and what to do.
        """
        if not self._members:
            return
        by_work = {m.work: m for m in self._members.values()}
        done, _ = ray.wait(list(by_work), num_returns=len(by_work), timeout=0)
        for work in done:
            member = by_work[work]
            del self._members[member.node.id]
            try:
                result = ray.get(work)
            except RayTaskError as error:
                if isinstance(error.cause, DeadlineError):
                    raise error.cause from None
                raise
            except RayError as error:  # its node is dying; if it is not, another one is started
                _logger.warning("The agent of %s was lost: %s", member.node.host, _line(error))
                continue
            finally:
                _end(member)
            if result.settled:
                if self.result is None or result.checkpoint_ok:
                    self.result = result
            else:
                self._resting.add(member.node.id)

    def let_go(self, nodes: Collection[Node], why: str) -> None:
        """Let the agents of some nodes save, give back what they hold, and end."""
        for node in nodes:
            member = self._members[node.id]
            if not member.leaving:
                _logger.info("Ray node %s is not needed now.", node.host)
                member.actor.leave.options(max_task_retries=0).remote(why)
                member.leaving = True

    def close(self) -> None:
        """Let all agents leave, and end them."""
        self.let_go(self.nodes, "the launch has ended")
        end = time.monotonic() + _FAREWELL
        works = [m.work for m in self._members.values()]
        if works:
            with suppress(RayError):
                ray.wait(works, num_returns=len(works), timeout=max(0.0, end - time.monotonic()))
        for member in self._members.values():
            _end(member)
        self._members.clear()


def _end(member: _Member) -> None:
    """Ray shall not start it again."""
    with suppress(RayError):
        ray.kill(member.actor, no_restart=True)


def _line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
