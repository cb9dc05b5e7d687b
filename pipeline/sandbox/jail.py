"""What runs inside a jail: takes one request, compiles, runs, reports, and is thrown away with the jail.

Started as `python -I -S -c <this file>` as process 1 of its process name space, so that no signal from
inside can end it; file descriptor 0 is the socket to the host, 1 and 2 are the program's pipes. Only the
standard library, and little of it: the start is what a warm pool pays for. A Python program runs in a fork
of this very interpreter. The host treats every report as the program's own word: a program that took this
process over could say no more than it could print. Not covered here: every limit (bubblewrap, control
groups and the host's clock).

Frames to the host: one letter, four bytes of length (big-endian), payload. R ready; S started (from the fork
itself, for the compiler and for the program each); C compiled (status, output); E ended (status); F a file
(two bytes of its index in `collect`, content); D done. Status as of `waitpid`.
"""

import marshal
import os
import resource
import select
import signal
import stat
import struct
import sys
from types import ModuleType
from typing import Any

HOME = "/box"
_REAP_MILLISECONDS = 50
_PR_SET_DUMPABLE = 4
_LAST_SECONDS = 5


def send(letter: bytes, payload: bytes = b"", more: int = 0) -> None:
    """One frame to the host, or its beginning with `more` bytes to be written."""
    write(letter + struct.pack(">I", len(payload) + more) + payload)


def write(content: bytes) -> None:
    """All of it to the host."""
    data = memoryview(content)
    while data:
        data = data[os.write(0, data) :]


def receive(size: int) -> bytes:
    """Exactly this many bytes; the host gone means the end."""
    parts = []
    while size:
        part = os.read(0, min(size, 1 << 20))
        if not part:
            os._exit(0)
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def control(option: int, value: int) -> None:
    """`prctl` of the calling process."""
    import ctypes

    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def write_files(files: dict[str, bytes]) -> None:
    """The program's files, below the working directory; the host has checked the names."""
    for name, content in files.items():
        path = os.path.join(HOME, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as out:
            out.write(content)


def scratch(name: str) -> int:
    """A file without a name, in memory; on the program's disk where the filter refuses memory files."""
    try:
        return os.memfd_create(name)
    except PermissionError:
        return os.open("/tmp", os.O_TMPFILE | os.O_RDWR)


def become_program(request: dict[str, Any], stdin: bytes, limits: dict[str, int], output: int | None) -> None:
    """In the fork: own descriptors, default signals, resource limits."""
    source = scratch("stdin")
    os.write(source, stdin) if stdin else None
    os.lseek(source, 0, os.SEEK_SET)
    send(b"S")
    os.dup2(source, 0)
    if output is not None:
        os.dup2(output, 1)
        os.dup2(output, 2)
    os.closerange(3, 64)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name, value in limits.items():
        number = getattr(resource, name)
        already = resource.getrlimit(number)[1]
        # At the hard limit of processor time comes SIGKILL; at the soft one SIGXCPU, which says why.
        hard = value + _LAST_SECONDS if number == resource.RLIMIT_CPU else value
        if already != resource.RLIM_INFINITY:
            value, hard = min(value, already), min(hard, already)
        resource.setrlimit(number, (value, hard))
    os.environ.clear()
    os.environ.update(request["env"])
    control(_PR_SET_DUMPABLE, 1)


def wait_for(main: int) -> int:
    """Reap until the main process ends, then end all others; its status. The host gone is our own end."""
    ended = os.pidfd_open(main)
    poller = select.poll()
    poller.register(ended, select.POLLIN)
    poller.register(0, select.POLLRDHUP)
    status = None
    while status is None:
        if any(descriptor == 0 for descriptor, _ in poller.poll(_REAP_MILLISECONDS)):
            os._exit(0)
        status = reap(main)
    os.close(ended)
    try:
        os.kill(-1, signal.SIGKILL)
        while True:
            os.wait()
    except (ProcessLookupError, ChildProcessError):
        return status


def reap(main: int) -> int | None:
    """Take every process that has ended; the main one's status, if it is among them."""
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid in (0, main):
            return status if pid else None


def execute(command: list[str], restore_pipe: bool = True) -> None:
    """Replace the fork by a command; 127 where that is impossible, as a shell does."""
    if restore_pipe:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        os.execvpe(command[0], command, os.environ)
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
        os._exit(127)


def compile_program(request: dict[str, Any]) -> bool:
    """Run the compiler; True when its output may be run."""
    output = scratch("compiler")
    child = os.fork()
    if not child:
        become_program(request, b"", request["compile_limits"], output)
        execute(request["compile"])
    status = wait_for(child)
    said = os.pread(output, request["output_bytes"], 0)
    os.close(output)
    # What a compiler leaves in memory (caches) is not the program's.
    for directory, directories, names in os.walk("/tmp", topdown=False):
        for each in names:
            os.unlink(os.path.join(directory, each))
        for each in directories:
            os.rmdir(os.path.join(directory, each))
    send(b"C", struct.pack(">i", status) + said)
    return status == 0 and receive(1) == b"G"


def collect(names: list[str]) -> None:
    """Send the files asked for: regular ones that no link leads to."""
    for index, name in enumerate(names):
        opened = []
        try:
            opened.append(os.open(HOME, os.O_PATH | os.O_DIRECTORY))
            *parents, last = name.split("/")
            for parent in parents:
                flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW
                opened.append(os.open(parent, flags, dir_fd=opened[-1]))
            opened.append(os.open(last, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=opened[-1]))
        except OSError:
            pass
        else:
            send_file(index, opened[-1])
        for descriptor in opened:
            os.close(descriptor)


def send_file(index: int, file: int) -> None:
    """One frame, piece by piece: this process lives on the program's memory. Nobody is left who writes."""
    status = os.fstat(file)
    if stat.S_ISREG(status.st_mode):
        send(b"F", struct.pack(">H", index), more=status.st_size)
        while piece := os.read(file, 1 << 18):
            write(piece)


def run_python(request: dict[str, Any]) -> None:
    """In the fork: be `python main.py`; returns into the interpreter's ordinary end."""
    path = os.path.join(HOME, request["run"][1])
    sys.argv = request["run"][1:]
    sys.path[:0] = [HOME, *request["python_paths"]]
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 (the program's standard input)
    main = ModuleType("__main__")
    main.__dict__.update(__file__=path, __builtins__=__builtins__)
    sys.modules["__main__"] = main
    try:
        with open(path, "rb") as source:
            code = compile(source.read(), path, "exec")
        exec(code, main.__dict__)
    except SystemExit:
        raise
    except BaseException as error:
        trace = error.__traceback__
        error.__traceback__ = trace.tb_next if trace else None
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(1)


def serve() -> bool:
    """One request, then the end; True in the fork that has become a Python program that is through."""
    os.closerange(3, 4096)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # No process of the jail may look into this one (/proc/1/mem, fd).
    control(_PR_SET_DUMPABLE, 0)
    import site  # -S leaves out exit(), quit() and copyright

    site.setquit()
    site.setcopyright()
    site.sethelper()
    send(b"R")
    request = marshal.loads(receive(struct.unpack(">Q", receive(8))[0]))
    os.chdir(HOME)
    write_files(request.pop("files"))
    if request["compile"] and not compile_program(request):
        return False
    child = os.fork()
    if not child:
        become_program(request, request["stdin"], request["limits"], None)
        if request["interpreter"]:
            run_python(request)
            return True
        execute(request["run"])
    send(b"E", struct.pack(">i", wait_for(child)))
    collect(request["collect"])
    send(b"D")
    return False


if __name__ == "__main__" and not serve():
    os._exit(0)
