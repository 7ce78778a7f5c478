"""Helper processes of a sandbox, which keep the privileges that their parent drops.

Imported by `mounting` and `groups`, so it imports no other module of Batholith.
"""

import os
from collections.abc import Callable


def fork_helper(work: Callable[[], object]) -> Callable[[], bool]:
    """Fork a process that keeps the present privileges and namespaces, and waits.

    The returned function, to be called once, has it call *work* and waits for its exit; it returns
    whether that succeeded. The helper exits without *work* if this process exits first.
    """
    wake, waker = os.pipe()
    helper = os.fork()
    if helper == 0:
        code = 1
        try:
            os.close(waker)
            if os.read(wake, 1):
                work()
                code = 0
        finally:
            os._exit(code)
    os.close(wake)

    def run() -> bool:
        os.write(waker, b"x")
        os.close(waker)
        return os.waitpid(helper, 0)[1] == 0

    return run
