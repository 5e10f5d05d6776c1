"""Stand for a Python that a fork server runs: pass signals on to the fork, and end as the fork does.

Its first argument is the servers' sockets, separated by colons: ranks get different ones, since each server has its own
hash seed, and processes that start alone would differ in theirs. The others are what Python's would be. Nothing is
imported that takes time.
"""

import json
import os
import select
import signal
import socket
import struct
import sys

STATUS = struct.Struct("<i")
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCONT, signal.SIGUSR1, signal.SIGUSR2)


def main() -> None:
    sockets, *arguments = sys.argv[1:]
    servers = sockets.split(":")
    request = {
        "arguments": arguments, "environment": dict(os.environ), "folder": os.getcwd(),
        "cores": sorted(os.sched_getaffinity(0)),
    }  # fmt: skip
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    server = socket.socket(socket.AF_UNIX)
    server.connect(servers[int(os.environ.get("OMPI_COMM_WORLD_RANK", 0)) % len(servers)])
    body = json.dumps(request).encode()
    socket.send_fds(server, [STATUS.pack(len(body))], [0, 1, 2])
    server.sendall(body)
    pid = _receive(server)
    # Python calls a handler after a system call that it is about to make, which may be one that waits for the fork.
    signals, written = os.pipe()
    os.set_blocking(written, False)
    signal.set_wakeup_fd(written)
    for number in PASSED_ON:
        signal.signal(number, lambda number, frame: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
    while server not in select.select([server, signals], [], [])[0]:
        for number in os.read(signals, 100):
            _pass_on(pid, number)
    code = os.waitstatus_to_exitcode(_receive(server))
    if code < 0:
        if -code in PASSED_ON:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _pass_on(pid: int, number: int) -> None:
    try:  # contextlib would take time
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _receive(server: socket.socket) -> int:
    answer = server.recv(STATUS.size)
    if not answer:
        raise SystemExit("the fork server has ended")
    return STATUS.unpack(answer)[0]


main()
