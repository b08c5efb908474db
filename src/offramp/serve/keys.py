"""API keys: those of which requests must send one, from a variable and from a file that may change."""

import hmac
import os
from pathlib import Path

from offramp.errors import BadOption
from offramp.serve.logs import log


class Keys:
    """
    Args:
        variable: the environment variable with the keys, separated by white space.
        file: has the keys, separated by white space; read again when it has changed.
    """

    def __init__(self, variable: str | None, file: Path | None) -> None:
        self.file = file
        self.fixed = os.environ.get(variable, "").encode().split() if variable else []
        if variable and not self.fixed:
            raise BadOption(f"api_key_env={variable}: the variable is not set, or empty.")
        self.seen: tuple[int, ...] | None = None
        """What identifies the version of the file that was read."""
        self.of_file: list[bytes] = []
        if problem := self.read_file():
            raise BadOption(f"api_key_file={file}: {problem}.")

    def __bool__(self) -> bool:
        """Whether requests must send a key."""
        return bool(self.fixed or self.file)

    def accept(self, sent: bytes) -> bool:
        if problem := self.read_file():
            log.error("the keys in %s stay as they were: %s", self.file, problem)
        # all are compared, so that the time does not tell which one is similar
        return sum(hmac.compare_digest(sent, key) for key in (*self.fixed, *self.of_file)) > 0

    def read_file(self) -> str:
        """Why a new version of the file cannot be used; such a version is reported once. Empty if all is well."""
        if self.file is None:
            return ""
        try:
            about = self.file.stat()
            version = (about.st_ino, about.st_size, about.st_mtime_ns)
            if version == self.seen:
                return ""
            self.seen = version
            found = self.file.read_bytes().split()
        except OSError as error:
            if self.seen == ():
                return ""
            self.seen = ()
            return error.strerror or str(error)
        if not found:
            return "it has no keys"
        self.of_file = found
        return ""
