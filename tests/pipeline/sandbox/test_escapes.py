"""Attempts to get out, to look out, to spoil the machine and to wait for the next program. None may succeed.

An attempt is Python (or named otherwise) that is told where everything is. It returns true when it got what
it wanted; OSError means that the kernel refused. Any other error is a broken attempt and fails the test.
Where the attempt is harmless, it is also made under `unsafe`, where it must succeed: so that no case passes
by accident.
"""

import asyncio
import contextlib
import textwrap
import time
from pathlib import Path

import pytest

from pipeline.errors import ConfigError
from pipeline.sandbox.base import Limits, Outcome, Program, Sandbox
from tests.pipeline.sandbox.conftest import SECRET, Host, descendants, run

LONG = Limits(seconds=50)
SMALL = Limits(seconds=20.0, memory_mib=64, processes=16, output_bytes=8192, disk_mib=32)

PRELUDE = """
import ctypes, errno, fcntl, mmap, os, resource, signal, socket, subprocess, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
def syscall(number, *arguments):
    result = libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return True
def text(path):
    with open(path, errors="replace") as file:
        return file.read(4096)
"""
ENDING = """
try:
    print("ESCAPED" if attempt() else "HELD")
except OSError as error:
    print("HELD", error)
"""


def attempt(body: str, host: Host) -> Program:
    """A program from the body of a function that tells whether it got out."""
    function = "def attempt():\n" + textwrap.indent(textwrap.dedent(body).strip(), "    ")
    return Program(f"HOST = {host.facts()!r}\n{PRELUDE}\n{function}\n{ENDING}")


# name: body; true in the second place where the same is harmless, and works, without a sandbox
REACH: dict[str, tuple[str, bool]] = {
    # network
    "tcp to the host's loopback": (
        "socket.create_connection(('127.0.0.1', HOST['tcp']), 2); return True", True),
    "tcp to the internet": ("socket.create_connection(('1.1.1.1', 53), 2); return True", False),
    "udp to the host": (
        "sent = socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', HOST['udp']))\n"
        "return HOST['net'] == os.readlink('/proc/self/ns/net')", True),
    "name lookup": ("return socket.getaddrinfo('example.com', 80)", False),
    "unix socket by path": ("socket.socket(socket.AF_UNIX).connect(HOST['unix']); return True", True),
    "abstract unix socket": ("socket.socket(socket.AF_UNIX).connect(HOST['abstract']); return True", True),
    "netlink": ("return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)", True),
    "raw socket": ("return socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)", False),
    "packet socket": ("return socket.socket(socket.AF_PACKET, socket.SOCK_RAW)", False),
    "vsock": ("return socket.socket(40, socket.SOCK_STREAM)", False),
    "other interfaces": ("return len(text('/proc/net/dev').splitlines()) > 3", False),
    # reading outside
    "planted secret": (f"return {SECRET!r} in text(HOST['secret'])", True),
    "/etc/shadow": ("return text('/etc/shadow')", False),
    "accounts of the host": ("return 'root:' in text('/etc/passwd')", True),
    "home directory": (
        "return [n for n in os.listdir(HOST['home']) if n != '.pyenv' and n != '.rustup']", False),
    "checkout": ("return os.listdir(HOST['checkout'])", True),
    "host environment": (f"return {SECRET!r} in str(os.environ)", True),
    "environment of process 1": (
        "return os.path.exists('/proc/1/environ') and text('/proc/1/environ')", False),
    "environment of a host process": (
        f"return {SECRET!r} in text('/proc/%d/environ' % HOST['victim'])", True),
    "host through /proc/self/root": ("return os.path.exists('/proc/self/root' + HOST['secret'])", True),
    "host through /proc/1/root": ("return os.path.exists('/proc/1/root' + HOST['secret'])", False),
    "host through ../": ("return os.path.exists('../' * 20 + HOST['secret'])", True),
    "host through /proc/1/cwd": (
        "return os.listdir('/proc/1/cwd/' + '../' * 9 + HOST['drop'] + '/..')", False),
    "inherited descriptors": (
        "names = [(int(n), os.readlink('/proc/self/fd/' + n)) for n in os.listdir('/proc/self/fd')]\n"
        "return [n for n in names if n[0] > 3 or not n[1].startswith(('/memfd:', '/proc/', 'pipe:'))]",
        False),
    "descriptors of process 1": ("return os.listdir('/proc/1/fd')", False),
    "host processes": ("return os.path.exists('/proc/%d' % HOST['victim'])", True),
    "kernel log": ("return text('/dev/kmsg')", False),
    "physical memory": ("return open('/dev/mem', 'rb').read(1)", False),
    "kernel core": ("return open('/proc/kcore', 'rb').read(1)", False),
    "sysfs": ("return os.listdir('/sys')", True),
    "docker socket": ("return os.path.exists('/var/run')", True),
    "block device": (
        "return [n for n in os.listdir('/dev') if n.startswith(('vd', 'sd', 'nvme', 'loop'))]", False),
    "mknod": (
        "os.mknod('/tmp/disk', 0o60666, os.makedev(254, 0)); return open('/tmp/disk', 'rb').read(1)", False),
    # writing outside
    "file in the host's directory": ("open(HOST['drop'] + '/x', 'w'); return True", True),
    "file in /usr": ("open('/usr/bin/planted', 'w'); return True", False),
    "file in the root": ("open('/planted', 'w'); return True", False),
    "file in /dev": ("open('/dev/planted', 'w'); return True", False),
    "change of /etc": ("open('/etc/passwd', 'a'); return True", False),
    "change of the interpreter": ("open(os.__file__, 'a'); return True", False),
    "kernel setting": ("open('/proc/sys/kernel/core_pattern', 'w'); return True", False),
    "sysrq": ("open('/proc/sysrq-trigger', 'w'); return True", False),
    "own control group": ("return os.listdir('/sys/fs/cgroup')", True),
    "remount": ("return syscall(165, 0, ctypes.cast(b'/usr', ctypes.c_void_p).value, 0, 32, 0)", False),
    # other processes and the kernel
    "kill a host process": ("os.kill(HOST['victim'], 0); return True", True),
    "ptrace of process 1": ("return syscall(101, 16, 1, 0, 0)", False),
    "memory of process 1": ("return open('/proc/1/mem', 'r+b')", False),
    "process_vm_readv": ("return syscall(310, 1, 0, 0, 0, 0, 0)", False),
    "become root": ("os.setuid(0); return True", False),
    "become root's group": ("os.setgid(0); return True", False),
    "capabilities": (
        "s = dict(l.split(':\\t') for l in open('/proc/self/status').read().splitlines() if ':\\t' in l)\n"
        "return s['NoNewPrivs'] != '1' or any(int(s['Cap' + k], 16) for k in ('Eff', 'Prm', 'Inh', 'Amb'))",
        True),
    "setuid program": (
        "return subprocess.run(['su', '-c', 'id'], capture_output=True).returncode == 0", False),
    "mount": ("return syscall(165, 0, ctypes.cast(b'/tmp', ctypes.c_void_p).value,"
              " ctypes.cast(b'tmpfs', ctypes.c_void_p).value, 0, 0)", False),
    "chroot": ("os.chroot('/tmp'); return True", False),
    "new user name space": ("return syscall(272, 0x10000000)", False),
    "new user name space by clone": ("return syscall(56, 0x10000000 | 17, 0, 0, 0, 0)", False),
    "new user name space by clone3": ("return syscall(435, 0, 0)", False),
    "name space of process 1": ("return syscall(308, os.open('/proc/1/ns/mnt', os.O_RDONLY), 0)", False),
    "key ring": ("return syscall(250, 0, -3, 0, 0, 0)", False),
    "bpf": ("return syscall(321, 0, 0, 0)", False),
    "perf events": ("return syscall(298, 0, 0, -1, -1, 0)", False),
    "io_uring": ("return syscall(425, 1, ctypes.addressof(ctypes.create_string_buffer(256)))", False),
    "userfaultfd": ("return syscall(323, 1)", False),
    "file handles": ("return syscall(304, -100, 0, 0)", False),
    "personality": ("return syscall(135, 0x40000)", True),
    "clock": ("time.clock_settime(time.CLOCK_REALTIME, 1.0); return True", False),
    "host name": ("return socket.gethostname() != 'sandbox'", True),
    "change of the host name": ("socket.sethostname('x'); return True", False),
    "reboot": ("return syscall(169, 0xfee1dead, 672274793, 0x4321fedc, 0)", False),
    "real-time priority": ("os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50)); return True", False),
    "higher priority": ("os.setpriority(os.PRIO_PROCESS, 0, -10); return True", False),
    "raise a resource limit": (
        "try:\n    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 40, 1 << 40)); return True\n"
        "except ValueError:\n    return False", True),
    "limits of process 1": ("return resource.prlimit(os.getppid(), resource.RLIMIT_CPU)", True),
    "what others open": ("return syscall(294, 0)", True),
    "other families in pairs": (
        "pair = (ctypes.c_int * 2)()\n"
        "for family in (16, 21, 30, 38, 40, 43):\n    libc.socketpair(family, 1, 0, pair)\n"
        "    if ctypes.get_errno() != errno.EAFNOSUPPORT: return True", True),
    "protocols in modules": (
        "for protocol in (33, 132, 136, 262):\n    for kind in (1, 2, 5, 6):\n"
        "        try:\n            return socket.socket(socket.AF_INET, kind, protocol)\n"
        "        except OSError as error:\n"
        "            if error.errno != errno.EPROTONOSUPPORT: return True", False),
    "line disciplines in modules": (
        "try:\n    return not fcntl.ioctl(os.openpty()[1], 0x5423, (21).to_bytes(4, 'little'))\n"
        "except OSError as error:\n    return error.errno != errno.EPERM", False),
    "calls of tomorrow": ("return syscall(467, 0, 0, 0, 0, 0)", False),
    "type into a terminal": ("return not fcntl.ioctl(os.open('/dev/ptmx', os.O_RDWR), 0x5412, b'x')", False),
}  # fmt: skip


@pytest.mark.parametrize("name", REACH)
def test_nothing_outside_is_reached(name: str, bubblewrap: Sandbox, unsafe: Sandbox, host: Host) -> None:
    body, harmless = REACH[name]
    program = attempt(body, host)
    host.reached()
    done = run(bubblewrap, program, SMALL)
    assert (done.outcome, done.stdout[:4]) == (Outcome.OK, "HELD"), done
    assert SECRET not in done.stdout + done.stderr
    assert host.reached() == []
    if harmless:
        assert run(unsafe, program, SMALL).stdout == "ESCAPED\n"
        host.reached()


FOREIGN = {
    "fork bomb of a shell": ("bash", ":(){ :|:& };:; wait; exit 1"),
    "program in 32-bit mode": (
        "c", 'int main(void){int r; __asm__("int $0x80":"=a"(r):"a"(20)); return r > 0 ? 0 : 1;}'),
    "x32 call": ("c", "#include <unistd.h>\nint main(void){return syscall(0x40000000 | 39) > 0 ? 0 : 1;}"),
    "sqlite's shell": (
        "sql", ".shell cat /etc/shadow > out\n.read /etc/shadow\nselect readfile('/etc/shadow') + 1;"),
    "node reads the host": ("javascript", "require('fs').readFileSync('/etc/shadow')"),
    "stack bomb": (
        "c", "int f(int n){volatile char b[4096]; b[0]=n; return f(n+1)+b[0];} int main(void){return f(0);}"),
}  # fmt: skip


@pytest.mark.parametrize("name", FOREIGN)
def test_other_languages_stay_inside(name: str, bubblewrap: Sandbox, host: Host) -> None:
    language, code = FOREIGN[name]
    try:
        done = run(bubblewrap, Program(code, language), Limits(seconds=50, memory_mib=64, processes=16))
    except ConfigError as error:
        pytest.skip(str(error))
    endless = {Outcome.TIMEOUT} if name == "fork bomb of a shell" else set()
    assert done.outcome in {Outcome.RUNTIME_ERROR, Outcome.OUT_OF_MEMORY} | endless, done
    assert "root:" not in done.stdout + done.stderr


BOMBS: dict[str, tuple[str, set[Outcome]]] = {
    "fork bomb": ("while True:\n    os.fork()", {*Outcome} - {Outcome.OK}),
    "thread bomb": (
        "for _ in range(5000):\n    threading.Thread(target=time.sleep, args=(60,)).start()",
        {Outcome.RUNTIME_ERROR, Outcome.TIMEOUT}),
    "memory bomb": ("b = []\nwhile True:\n    b.append(bytearray(1 << 20))", {Outcome.OUT_OF_MEMORY}),
    "one large block": ("b = bytearray(1 << 30)", {Outcome.OUT_OF_MEMORY}),
    "mapped memory": (
        "m = mmap.mmap(-1, 1 << 30)\nfor at in range(0, 1 << 30, 4096):\n    m[at] = 1",
        {Outcome.OUT_OF_MEMORY}),
    "memory file": ("f = os.memfd_create('x')\nwhile True:\n    os.write(f, bytes(1 << 20))", {
        Outcome.OUT_OF_MEMORY, Outcome.RUNTIME_ERROR}),
    "memory of many processes": (
        "for _ in range(8):\n    if not os.fork():\n        b = bytearray(48 << 20)\n        time.sleep(60)\n"
        "os.wait()",
        {Outcome.OUT_OF_MEMORY}),
    "shared memory": (
        "f = open('/dev/shm/x', 'wb')\nwhile True:\n    f.write(bytes(1 << 20))",
        {Outcome.OUT_OF_MEMORY, Outcome.RUNTIME_ERROR}),
    "disk filled by one file": (
        "f = open('x', 'wb')\nwhile True:\n    f.write(bytes(1 << 20))",
        {Outcome.OUT_OF_MEMORY, Outcome.RUNTIME_ERROR}),
    "disk filled by many files": (
        "for n in range(1 << 30):\n    open(f'/tmp/{n}', 'wb').write(bytes(4096))",
        {Outcome.OUT_OF_MEMORY, Outcome.RUNTIME_ERROR, Outcome.TIMEOUT}),
    "sparse file": ("os.truncate(os.open('x', os.O_CREAT | os.O_RDWR), 1 << 40)", {Outcome.RUNTIME_ERROR}),
    "descriptors": ("k = []\nwhile True:\n    k.append(os.dup(1))", {Outcome.RUNTIME_ERROR}),
    "output flood": ("while True:\n    os.write(1, b'x' * 65536)", {Outcome.RUNTIME_ERROR, Outcome.TIMEOUT}),
    "error flood": ("while True:\n    os.write(2, b'x' * 65536)", {Outcome.RUNTIME_ERROR, Outcome.TIMEOUT}),
    "flood of children": (
        "for _ in range(6):\n    os.fork()\nwhile True:\n    os.write(1, b'x' * 65536)",
        {Outcome.RUNTIME_ERROR, Outcome.TIMEOUT}),
    "deaf and endless": (
        "for n in range(1, 32):\n    signal.signal(n, signal.SIG_IGN) if n not in (9, 19) else None\n"
        "while True:\n    pass", {Outcome.TIMEOUT}),
    "stopped": ("os.kill(os.getpid(), signal.SIGSTOP)", {Outcome.TIMEOUT}),
    "kills everything": (
        "os.kill(1, 9)\nos.kill(-1, 9)\ntime.sleep(60)", {Outcome.TIMEOUT, Outcome.RUNTIME_ERROR}),
    "stops the supervisor": ("os.kill(1, signal.SIGSTOP)\nos._exit(3)", {Outcome.RUNTIME_ERROR}),
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_go_off_inside(name: str, bubblewrap: Sandbox, host: Host) -> None:
    code, outcomes = BOMBS[name]
    # Where time may not be what ends it, none is short.
    seconds = 1.5 if Outcome.TIMEOUT in outcomes else 50
    limits = Limits(seconds=seconds, memory_mib=64, processes=16, output_bytes=8192, disk_mib=32)
    done = run(bubblewrap, Program(PRELUDE + code), limits)
    assert done.outcome in outcomes, done
    assert len(done.stdout) <= 8192 and len(done.stderr) <= 8192
    assert run(bubblewrap, Program("print('fine')"), LONG).stdout == "fine\n"
    assert host.reached() == []


COLLECTED = {
    "link to a system file": "os.symlink('/etc/passwd', 'out')",
    "link to the host": "os.symlink(HOST['secret'], 'out')",
    "linked directory": "os.symlink('/etc', 'dir')",
    "hard link to a system file": "os.link('/usr/bin/env', 'out')",
    "device": "os.symlink('/dev/zero', 'out')",
    "fifo": "os.mkfifo('out')",
    "socket": "socket.socket(socket.AF_UNIX).bind('out')",
    "directory": "os.mkdir('out')",
    "unreadable": "open('out', 'w').close(); os.chmod('out', 0)",
}


@pytest.mark.parametrize("name", COLLECTED)
def test_only_plain_files_come_back(name: str, bubblewrap: Sandbox, host: Host) -> None:
    made = attempt(COLLECTED[name], host)
    program = Program(made.code, collect=("out", "dir/passwd", "never/made"))
    done = run(bubblewrap, program, SMALL)
    assert done.stdout.startswith("HELD") and done.files == {}


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a/../../x", "", "a//b", "./x", "..", "a\0b"])
def test_paths_that_lead_out_are_refused(path: str, bubblewrap: Sandbox, unsafe: Sandbox) -> None:
    for sandbox in (bubblewrap, unsafe):
        with pytest.raises(ConfigError, match="relative path"):
            run(sandbox, Program("", files={path: b"x"}))
        with pytest.raises(ConfigError, match="relative path"):
            run(sandbox, Program("", collect=(path,)))


LEFT_BEHIND = {
    "file in /tmp": ("open('/tmp/left', 'w')", "return os.path.exists('/tmp/left')"),
    "file beside the program": ("open('left.py', 'w')", "return os.path.exists('left.py')"),
    "shared memory": ("open('/dev/shm/left', 'w')", "return os.listdir('/dev/shm')"),
    "module": ("open('random.py', 'w').write('1')", "import random; return not hasattr(random, 'Random')"),
    "changed interpreter": (
        "import builtins; builtins.len = lambda x: 99; sys.modules['json'] = None; sys.path[:] = []",
        "import json; return len('a') == 99"),
    "System V memory": ("syscall(29, 4711, 4096, 0o1666)", "return syscall(29, 4711, 4096, 0o666)"),
    "semaphore": ("syscall(64, 4711, 1, 0o1666)", "return syscall(64, 4711, 1, 0o666)"),
    "abstract socket": (
        "s = socket.socket(socket.AF_UNIX); s.bind('\\0left'); s.listen()\nif os.fork(): os._exit(0)\n"
        "os.setsid(); time.sleep(60)", "socket.socket(socket.AF_UNIX).connect('\\0left'); return True"),
    "daemon": (
        "if os.fork(): return\nos.setsid()\nif os.fork(): os._exit(0)\n"
        "signal.signal(15, signal.SIG_IGN); signal.signal(1, signal.SIG_IGN)\n"
        "while True: time.sleep(0.01); open('/tmp/left', 'w')",
        "time.sleep(0.1)\n"
        "return os.path.exists('/tmp/left') or len([n for n in os.listdir('/proc') if n.isdigit()]) > 2"),
}  # fmt: skip


@pytest.mark.parametrize("name", LEFT_BEHIND)
def test_nothing_waits_for_the_next_program(name: str, bubblewrap: Sandbox, host: Host) -> None:
    plant, look = LEFT_BEHIND[name]
    for _ in range(3):  # through every warm jail
        planted = run(bubblewrap, attempt(plant, host), SMALL)
        assert planted.outcome is Outcome.OK, planted
        found = run(bubblewrap, attempt(look, host), SMALL)
        assert (found.outcome, found.stdout[:4]) == (Outcome.OK, "HELD"), found


def test_a_daemon_that_holds_the_output_does_not_hold_the_run(bubblewrap: Sandbox) -> None:
    code = "import os, time\nif not os.fork():\n    os.setsid()\n    time.sleep(60)\nelse:\n    print('done')"
    done = run(bubblewrap, Program(code), LONG)
    assert done.ok and done.stdout == "done\n"


def test_a_forged_exit_does_not_pass_for_the_expected_output(bubblewrap: Sandbox) -> None:
    done = run(bubblewrap, Program("import os\nos._exit(0)\nprint(42)", expected="42"), LONG)
    assert done.outcome is Outcome.WRONG_OUTPUT and done.exit_code == 0


@pytest.mark.parametrize("seconds", [1, 500])
def test_no_process_outlives_its_run(bubblewrap: Sandbox, seconds: float) -> None:
    """Neither one that its limit ends nor one that is cancelled."""
    code = "import os, time\nfor _ in range(5):\n    os.fork()\nos.setsid()\ntime.sleep(777)"
    named = f"open('/proc/self/comm', 'w').write({MARK!r})\n{code}"

    async def ended() -> None:
        task = asyncio.create_task(bubblewrap.run(Program(named), Limits(seconds=seconds)))
        if seconds == 1:
            assert (await task).outcome is Outcome.TIMEOUT
            return
        while len(marked()) < 2**5:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(ended())
    deadline = time.monotonic() + 60
    while (left := marked()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not left


MARK = "outlives-no-run"


def marked() -> list[int]:
    """Processes below us that call themselves by the mark (a fork inherits the name)."""
    found = []
    for pid in descendants():
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text().strip() == MARK:
                found.append(pid)
    return found


def test_the_suite_is_as_large_as_promised() -> None:
    assert sum(map(len, (REACH, FOREIGN, BOMBS, COLLECTED, LEFT_BEHIND))) >= 100
