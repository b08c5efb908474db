"""The number of CPUs that this process may use, on every platform."""

import os


def available_cpus() -> int:
    """CPUs that this process may run on; `os.cpu_count` also counts those that a container or taskset hides."""
    if hasattr(os, "process_cpu_count"):  # Python 3.13 and later
        return os.process_cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):  # Linux
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
