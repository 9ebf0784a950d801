"""Tasks whose items are made of the same draws: one row at several lengths, one set of facts beside another."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence

import numpy as np


def draws_key(task: str, draws: Mapping[str, str], indices: Iterable[int]) -> Hashable:
    """Tasks of equal keys have, column by column, items of one draw: equal ``draws`` (by task; its own name where they are
    not said), and indices in one order."""
    return draws.get(task, task), tuple(indices)


def pool_draws(tasks: Sequence[np.ndarray], keys: Sequence[Hashable]) -> tuple[list[np.ndarray], list[float]]:
    """Average tasks of equal ``keys`` column by column, and give the weights under which the mean over tasks stays.

    The mean over a suite takes items of different tasks as independent. Where column k of two tasks is one draw (the same
    row cut to two lengths), they are not, and the unit that varies is the draw: its mean over the tasks that show it. Right
    for independent columns, too, at the price of some degrees of freedom. ``tasks``: ``[S, N]`` each -> (one matrix a key,
    weights that sum to one). Raises ValueError when tasks of one key differ in shape.
    """
    groups: dict[Hashable, list[np.ndarray]] = {}
    for task, key in zip(tasks, keys, strict=True):
        groups.setdefault(key, []).append(task)
    for found in groups.values():
        if len({task.shape for task in found}) > 1:
            raise ValueError("tasks of one draw must have the same seeds and items")
    return [np.mean(found, axis=0) for found in groups.values()], [len(found) / len(tasks) for found in groups.values()]
