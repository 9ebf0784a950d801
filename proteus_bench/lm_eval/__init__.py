"""lm-eval, both ways (extra `lm-eval`).

Importing this package registers the model type ``proteus`` with lm-eval, which in version 0.4.13 looks for no plugins by
itself; `python -m proteus_bench.lm_eval` is lm-eval's own command line with this done. `tasks` and `tasks_path` give our
suites as lm-eval tasks, `lm_eval.commonsense` brings lm-eval's tasks into our suites.
"""

from __future__ import annotations

from typing import Any

try:
    from lm_eval.api.registry import get_model, register_model
except ImportError as error:
    raise ImportError(f"proteus_bench.lm_eval needs lm-eval: pip install 'proteus-bench[lm-eval]' ({error})") from error

__all__ = ["register", "tasks", "tasks_path"]

NAME = "proteus"


def register() -> None:
    """Make lm-eval know ``--model proteus``. Called on import; repeating it is harmless."""
    import lm_eval.models  # noqa: F401  lm-eval's own models first: it fills an empty registry only

    from proteus_bench.lm_eval.model import ProteusLM

    try:
        get_model(NAME)
    except ValueError:
        register_model(NAME)(ProteusLM)


def tasks(suite: str, **settings: Any) -> list[Any]:
    """The cells of a suite as lm-eval tasks: see `suite_task.suite_tasks`."""
    from proteus_bench.lm_eval.suite_task import suite_tasks

    return suite_tasks(suite, **settings)


def tasks_path(folder: Any, suites: Any = None) -> str:
    """A folder for lm-eval's ``--include_path``: see `suite_task.write_tasks`."""
    from proteus_bench.lm_eval.suite_task import write_tasks

    return write_tasks(folder, suites)


register()
