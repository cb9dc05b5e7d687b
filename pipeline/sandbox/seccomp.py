"""The system-call filter of a jail, as the BPF program the kernel takes.

Everything a program, a compiler or an interpreter needs is allowed; refused with EPERM is what debugs or
reaches into other processes, changes name spaces, mounts, keys, the clock or the kernel, or has a long
record of kernel bugs (bpf, io_uring, perf, userfaultfd), and inotify, which would show what the host and
other jails open below /usr. Sockets are Unix, TCP, UDP and ping only: any other protocol or line discipline
would load a kernel module. Resource limits are a process's own business: with another's, a program could end
its supervisor. `clone3` answers ENOSYS because its flags lie in memory that a filter cannot read; C libraries
then use `clone`, whose flags are checked. Calls younger than this table answer ENOSYS. A foreign calling
convention (32-bit, x32) ends the process. Numbers: the kernel's own tables for x86-64 and arm64. Not covered:
bugs in allowed calls.
"""

from __future__ import annotations

import errno
import platform
import struct

from pipeline.errors import ConfigError

_LOAD, _EQUAL, _AT_LEAST, _SET, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NR, _ARCH, _ARG0, _ARG1, _ARG2 = 0, 4, 16, 24, 32
_NEW_NAMESPACES = 0x7E020000
"""CLONE_NEW{NS,CGROUP,UTS,IPC,USER,PID,NET}."""
_TERMINAL = (0x5412, 0x541C, 0x5423)
"""TIOCSTI, TIOCLINUX, TIOCSETD."""
_FIRST_UNKNOWN = 463
"""The same on every machine: calls have had one number since 424."""
_AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# name: (x86-64, arm64); None where the machine has no such call
_REFUSED: dict[str, tuple[int | None, int | None]] = {
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438), "process_madvise": (440, 440), "kcmp": (312, 272),
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51),
    "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431),
    "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442), "quotactl": (179, 60),
    "quotactl_fd": (443, 443), "swapon": (167, 224), "swapoff": (168, 225), "unshare": (272, 97),
    "setns": (308, 268), "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "fanotify_init": (300, 262), "lookup_dcookie": (212, 18), "syslog": (103, 116), "acct": (163, 89),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "reboot": (169, 142),
    "settimeofday": (164, 170), "clock_settime": (227, 112), "clock_adjtime": (305, 266),
    "adjtimex": (159, 171), "sethostname": (170, 161), "setdomainname": (171, 162),
    "personality": (135, 92), "vhangup": (153, 58), "migrate_pages": (256, 238), "move_pages": (279, 239),
    "mbind": (237, 235), "set_mempolicy": (238, 237), "iopl": (172, None), "ioperm": (173, None),
    "modify_ldt": (154, None), "uselib": (134, None), "ustat": (136, None), "sysfs": (139, None),
    "_sysctl": (156, None), "nfsservctl": (180, 42),
    "inotify_init": (253, None), "inotify_init1": (294, 26),
}  # fmt: skip
_CHECKED = {
    "clone": (56, 220), "clone3": (435, 435), "socket": (41, 198), "socketpair": (53, 199), "ioctl": (16, 29),
    "prlimit64": (302, 261),
}  # fmt: skip
_MEMORY = ((319, 279), (447, 447), (29, 194))
"""memfd_create, memfd_secret, shmget."""
_FAMILIES = (1, 2, 10)
"""AF_UNIX, AF_INET, AF_INET6: all of them reach no further than the jail."""
_PROTOCOLS = (0, 1, 6, 17, 58)
"""The type's own (and Unix's 1), ICMP, TCP, UDP, ICMP for IPv6."""


def program(machine: str | None = None, *, memory_files: bool = True) -> bytes:
    """The filter for a machine (default this one) as `struct sock_filter[]`. Raises ConfigError.

    Without `memory_files` memory that belongs to no process (memfd, System V) is refused too: for hosts where
    nobody counts it.
    """
    machine = machine or platform.machine()
    if machine not in _AUDIT:
        known = ", ".join(_AUDIT)
        raise ConfigError(f"no system-call filter for {machine!r}; known: {known}; use the docker sandbox")
    column = list(_AUDIT).index(machine)
    number = {name: pair[column] for name, pair in _CHECKED.items()}
    lines = [_op(_LOAD, _ARCH), _op(_EQUAL, _AUDIT[machine], 1, 0), _op(_RETURN, _KILL), _op(_LOAD, _NR)]
    if machine == "x86_64":
        lines += [_op(_AT_LEAST, 0x40000000, 0, 1), _op(_RETURN, _KILL)]
    for pair in (*_REFUSED.values(), *(() if memory_files else _MEMORY)):
        if (refused := pair[column]) is not None:
            lines += [_op(_EQUAL, refused, 0, 1), _refuse(errno.EPERM)]
    lines += [_op(_EQUAL, number["clone3"], 0, 1), _refuse(errno.ENOSYS)]
    lines += [_op(_AT_LEAST, _FIRST_UNKNOWN, 0, 1), _refuse(errno.ENOSYS)]
    lines += _argument(number["clone"], _ARG0, [_op(_SET, _NEW_NAMESPACES, 0, 1), _refuse(errno.EPERM)])
    families = [*_one_of(_FAMILIES), _refuse(errno.EAFNOSUPPORT), _op(_LOAD, _ARG2)]
    sockets = [*families, *_one_of(_PROTOCOLS), _refuse(errno.EPROTONOSUPPORT)]
    for name in ("socket", "socketpair"):
        lines += _argument(number[name], _ARG0, sockets)
    refuse = _refuse(errno.EPERM)
    lines += _argument(number["prlimit64"], _ARG0, [_op(_EQUAL, 0, 1, 0), refuse])
    terminal = [line for code in _TERMINAL for line in (_op(_EQUAL, code, 0, 1), refuse)]
    lines += _argument(number["ioctl"], _ARG1, terminal)
    return b"".join([*lines, _op(_RETURN, _ALLOW)])


def _op(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _one_of(values: tuple[int, ...]) -> list[bytes]:
    """Step over the next line where the loaded word is one of these."""
    return [_op(_EQUAL, value, len(values) - at, 0) for at, value in enumerate(values)]


def _refuse(number: int) -> bytes:
    return _op(_RETURN, _ERRNO | number)


def _argument(number: int | None, offset: int, checks: list[bytes]) -> list[bytes]:
    """For this call, load the low half of an argument and check it; falling through means allowed."""
    assert number is not None
    body = [_op(_LOAD, offset), *checks, _op(_RETURN, _ALLOW)]
    return [_op(_EQUAL, number, 0, len(body)), *body]
