"""Texts and labels: the tasks of GLUE, ELUE and ELBERT by name, and the user's own files."""

from offramp.data.benchmarks import ELBERT_SETS, ELUE, GLUE
from offramp.data.task import Task

TASKS: dict[str, Task] = {task.name: task for task in [*GLUE, *ELUE, *ELBERT_SETS]}

__all__ = ["TASKS", "Task"]
