"""Helper processes of a sandbox, which keep the privileges that their parent drops.

Imported by `mounting` and `groups`, so it imports no other module of Batholith.
"""

import os
from collections.abc import Callable


class Helper:
    """A forked process that keeps the present privileges and namespaces, and waits for its tasks.

    It exits after the last task, after one that failed, and if this process exits first.
    """

    def __init__(self, *tasks: Callable[[], object]) -> None:
        wake, self._wake = os.pipe()
        self._done, done = os.pipe()
        self._left = len(tasks)
        self._pid = os.fork()
        if self._pid == 0:
            code = 1
            try:
                os.close(self._wake)
                for task in tasks:
                    if not os.read(wake, 1):
                        break
                    task()
                    os.write(done, b"x")
                else:
                    code = 0
            finally:
                os._exit(code)
        os.close(wake)
        os.close(done)

    def run(self) -> bool:
        """Have the helper do its next task; return whether it succeeded."""
        self._left -= 1
        os.write(self._wake, b"x")
        if self._left:
            return bool(os.read(self._done, 1))
        os.close(self._wake)
        os.close(self._done)
        return os.waitpid(self._pid, 0)[1] == 0
