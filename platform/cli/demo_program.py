"""Program of the demo's pods: a master assigns ranges, workers count the primes in them.

Plain Python on sockets in one file, which pods mount from a ConfigMap. Pods resolve each other by
the host names of the svc plugin; if pods have no private hosts file, in ``$BATHOLITH_HOSTS``.
"""

import json
import os
import queue
import socket
import sys
import threading
import time

PORT = 29500
LIMIT, STEP = 1_200_000, 40_000
EXPECTED_PRIMES = 92_938
"""Primes below LIMIT."""


def resolve(name: str) -> str:
    """Return the address of *name*; raise OSError while its pod has none."""
    hosts = os.environ.get("BATHOLITH_HOSTS")
    if not hosts:
        return socket.gethostbyname(name)
    with open(hosts) as lines:
        for line in lines:
            fields = line.partition("#")[0].split()
            if name in fields[1:]:
                return fields[0]
    raise OSError(f"{name} is not in the hosts file yet")


def wait_until_resolved(name: str) -> str:
    """Return the address of *name* once its pod has one."""
    while True:
        try:
            return resolve(name)
        except OSError:
            time.sleep(0.05)  # The pod is starting; poll.


def is_prime(number: int) -> bool:
    """Test by trial division, which is slow on purpose."""
    if number < 4:
        return number > 1
    if number % 2 == 0 or number % 3 == 0:
        return False
    divisor = 5
    while divisor * divisor <= number:
        if number % divisor == 0 or number % (divisor + 2) == 0:
            return False
        divisor += 6
    return True


def serve(connection: socket.socket, todo: "queue.Queue[int]", done: "queue.Queue[int]") -> None:
    """Send ranges to one worker; requeue the range of a lost worker."""
    lines = connection.makefile("rw")
    start = None
    try:
        print(f"{lines.readline().strip()} has joined", flush=True)
        while True:
            start = todo.get()
            lines.write(json.dumps([start, min(start + STEP, LIMIT)]) + "\n")
            lines.flush()
            done.put(int(lines.readline()))
            start = None
    except (OSError, ValueError):
        if start is not None:
            todo.put(start)


def master() -> int:
    """Distribute all ranges, and check the sum of the results."""
    todo: queue.Queue[int] = queue.Queue()
    done: queue.Queue[int] = queue.Queue()
    ranges = range(0, LIMIT, STEP)
    for start in ranges:
        todo.put(start)
    listener = socket.create_server((wait_until_resolved(os.environ["VC_MASTER_HOSTS"]), PORT))

    def accept() -> None:
        while True:
            arguments = (listener.accept()[0], todo, done)
            threading.Thread(target=serve, args=arguments, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    found = 0
    for number in range(1, len(ranges) + 1):
        found += done.get()
        if number % 6 == 0:
            print(f"{100 * number // len(ranges)} % searched, {found} primes", flush=True)
    print(f"{found} primes below {LIMIT}", flush=True)
    return 0 if found == EXPECTED_PRIMES else 1


def worker() -> int:
    """Count the primes in ranges from the master until it disconnects."""
    name = os.environ["VC_MASTER_HOSTS"]
    while True:
        try:
            connection = socket.create_connection((wait_until_resolved(name), PORT))
            break
        except OSError:
            time.sleep(0.05)  # The master is not listening yet.
    lines = connection.makefile("rw")
    lines.write(f"worker {os.environ['VC_TASK_INDEX']}\n")
    lines.flush()
    ranges = 0
    try:
        for line in lines:
            start, stop = json.loads(line)
            lines.write(f"{sum(map(is_prime, range(start, stop)))}\n")
            lines.flush()
            ranges += 1
    except OSError:
        pass  # The master has all results and has exited.
    print(f"searched {ranges} ranges", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(master() if sys.argv[1] == "master" else worker())
