"""A `python` that starts in no time: a process forked from one that has ESPnet loaded already.

What it runs is in a process of its own, with its own arguments, environment, working folder and
streams, as with Python itself; what the import of ESPnet costs (seconds) is paid once for all.

    forking_python.py SOCKET -m MODULE ... | SCRIPT ...    # the client; other options: plain Python
    forking_python.py --serve SOCKET MODULE ...            # the server, with these modules loaded

The server ends when its stdin does, with whoever holds it.
"""

import contextlib
import json
import os
import socket
import sys

SOCKET = (socket.AF_UNIX, socket.SOCK_SEQPACKET)  # which keeps a request whole
LONGEST = 1 << 20  # bytes of arguments and environment


def main(path, *words):
    """Run `python WORDS` from the server's process and end as it ends."""
    script = words and not words[0].startswith("-")
    if not script and words[:1] != ("-m",):
        os.execv(sys.executable, [sys.executable, *words])
    with socket.socket(*SOCKET) as server:
        server.connect(path)
        request = json.dumps([words, os.getcwd(), dict(os.environ)]).encode()
        socket.send_fds(server, [request], [0, 1, 2])
        status = server.recv(16)
    if not status:
        raise SystemExit(f"{__file__}: the server has gone")
    code = int(status)
    if code < 0:
        os.kill(os.getpid(), -code)
    os._exit(code)


def serve(path, *modules):
    """Load modules, and fork a process for each request until stdin ends."""
    import gc
    import importlib
    import select
    import signal

    from espnet_bayeslm.utils.imports import quiet_imports

    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    with quiet_imports():
        for module in modules:
            importlib.import_module(module)
    for name in [name for name in sys.modules if name.partition(".")[0] == "espnet_bayeslm"]:
        del sys.modules[name]  # a program imports it itself
    gc.freeze()  # a collection in a forked process would copy what it looks at
    paths = [folder for folder in sys.path[1:] if folder not in given]
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the processes
    with socket.socket(*SOCKET) as listener:
        listener.bind(path)
        listener.listen(64)
        os.dup2(2, 1)
        while 0 not in select.select([listener, 0], [], [])[0]:
            connection, _ = listener.accept()
            request, fds, _, _ = socket.recv_fds(connection, LONGEST, 3)
            if os.fork() == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                listener.close()
                watch(connection, request, fds, paths)
            connection.close()
            for fd in fds:
                os.close(fd)


def watch(connection, request, fds, paths):
    """Run a request in a child; tell the client how it ended, end it if the client is killed."""
    import select
    import signal

    child = os.fork()
    if child == 0:
        connection.close()
        become(*json.loads(request), fds, paths)
    for fd in fds:
        os.close(fd)
    ready, _, _ = select.select([connection, os.pidfd_open(child)], [], [])
    if connection in ready:
        os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        connection.send(str(code).encode())
    finally:
        os._exit(0)


def become(words, folder, environment, fds, paths):
    """Do what `python WORDS` does there, and end."""
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
        os.close(fd)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    added = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    module = words[0] == "-m"
    sys.argv = words[module:]
    first = folder if module else os.path.dirname(os.path.realpath(words[0]))
    sys.path[:] = [first, *added, *paths]
    code = run(words[module], module)
    sys.stdout.flush()
    sys.stderr.flush()
    # to take apart what was loaded would copy it, a second for nothing
    os._exit(code)


def run(name, module):
    """Run a script or module up to what is done at exit, and return the exit status."""
    import atexit
    import runpy
    import threading

    code = 0
    try:
        if module:
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(name, run_name="__main__")
    except SystemExit as end:
        code = end.code or 0
        if not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    return code


@contextlib.contextmanager
def hold(path, *modules):
    import subprocess

    environment = {**os.environ, "LC_ALL": "C.UTF-8", "PYTHONIOENCODING": "UTF-8"}
    command = [sys.executable, __file__, "--serve", path, *modules]
    pipes = dict.fromkeys(("stdin", "stdout"), subprocess.PIPE)
    with (
        open(f"{path}.log", "a") as log,
        subprocess.Popen(command, env=environment, stderr=log, **pipes) as server,
    ):
        server.stdout.read()  # it ends when the server listens, or has failed
        yield


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        serve(*sys.argv[2:])
    else:
        main(*sys.argv[1:])
