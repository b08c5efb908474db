"""Text and labels: the tasks of GLUE, ELUE and ELBERT by name, and a person's own files."""

from offramp.tasks.base import Task
from offramp.tasks.elbert_sets import TEXT
from offramp.tasks.elue import ELUE
from offramp.tasks.glue import GLUE

TASKS: dict[str, Task] = {task.name: task for task in [*GLUE, *ELUE, *TEXT]}

__all__ = ["TASKS", "Task"]
