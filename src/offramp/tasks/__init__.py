"""Texts and labels: the tasks of GLUE, ELUE and ELBERT by name, and the user's own files."""

from offramp.tasks.base import Task
from offramp.tasks.elbert_sets import ELBERT_SETS
from offramp.tasks.elue import ELUE
from offramp.tasks.glue import GLUE

TASKS: dict[str, Task] = {task.name: task for task in [*GLUE, *ELUE, *ELBERT_SETS]}

__all__ = ["TASKS", "Task"]
