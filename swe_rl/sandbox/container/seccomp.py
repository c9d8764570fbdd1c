"""This module makes the filter of system calls for containers, as docker's and podman's `seccomp` option reads it.

Invariants:
- It is a list of what is allowed: a call that is not named is refused. What process sandboxes are refused is refused
  here, too (`sandbox/process/seccomp`).
- It allows no call that docker's own list refuses to a container without capabilities, so that it is never the laxer
  of the two.
- `clone3` does not exist, as its flags are hidden from a filter; programs take `clone`.
"""

import errno
from typing import Any

from swe_rl.sandbox.process.seccomp import SOCKET_FAMILIES, refused_names

# These are the names of Linux 6.16 for both processors. The names of 32-bit programs are left out, and so are those
# with a condition below.
_ALLOWED = """
    accept accept4 access adjtimex alarm arch_prctl bind brk cachestat capget capset chdir chmod chown
    clock_getres clock_gettime clock_nanosleep close close_range connect copy_file_range creat dup dup2 dup3
    epoll_create epoll_create1 epoll_ctl epoll_ctl_old epoll_pwait epoll_pwait2 epoll_wait epoll_wait_old eventfd
    eventfd2 execve execveat exit exit_group faccessat faccessat2 fadvise64 fallocate fanotify_mark fchdir fchmod
    fchmodat fchmodat2 fchown fchownat fcntl fdatasync fgetxattr flistxattr flock fork fremovexattr fsetxattr
    fstat fstatfs fsync ftruncate futex futex_requeue futex_wait futex_waitv futex_wake futimesat get_robust_list
    get_thread_area getcpu getcwd getdents getdents64 getegid geteuid getgid getgroups getitimer getpeername
    getpgid getpgrp getpid getppid getpriority getrandom getresgid getresuid getrlimit getrusage getsid
    getsockname getsockopt gettid gettimeofday getuid getxattr getxattrat inotify_add_watch inotify_init
    inotify_init1 inotify_rm_watch io_cancel io_destroy io_getevents io_pgetevents io_setup io_submit ioctl
    ioprio_get ioprio_set kill landlock_add_rule landlock_create_ruleset landlock_restrict_self lchown lgetxattr
    link linkat listen listxattr listxattrat llistxattr lremovexattr lseek lsetxattr lstat madvise
    map_shadow_stack membarrier memfd_create memfd_secret mincore mkdir mkdirat mknod mknodat mlock mlock2
    mlockall mmap mprotect mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedsend mq_unlink mremap mseal
    msgctl msgget msgrcv msgsnd msync munlock munlockall munmap nanosleep newfstatat open openat openat2 pause
    pidfd_open pidfd_send_signal pipe pipe2 pkey_alloc pkey_free pkey_mprotect poll ppoll prctl pread64 preadv
    preadv2 prlimit64 process_mrelease pselect6 ptrace pwrite64 pwritev pwritev2 read readahead readlink
    readlinkat readv recvfrom recvmmsg recvmsg remap_file_pages removexattr removexattrat rename renameat
    renameat2 restart_syscall rmdir rseq rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn
    rt_sigsuspend rt_sigtimedwait rt_tgsigqueueinfo sched_get_priority_max sched_get_priority_min
    sched_getaffinity sched_getattr sched_getparam sched_getscheduler sched_rr_get_interval sched_setaffinity
    sched_setattr sched_setparam sched_setscheduler sched_yield seccomp select semctl semget semop semtimedop
    sendfile sendmmsg sendmsg sendto set_robust_list set_thread_area set_tid_address setfsgid setfsuid setgid
    setgroups setitimer setpgid setpriority setregid setresgid setresuid setreuid setrlimit setsid setsockopt
    setuid setxattr setxattrat shmat shmctl shmdt shmget shutdown sigaltstack signalfd signalfd4 socketpair splice
    stat statfs statx symlink symlinkat sync sync_file_range sync_file_range2 syncfs sysinfo tee tgkill time
    timer_create timer_delete timer_getoverrun timer_gettime timer_settime timerfd_create timerfd_gettime
    timerfd_settime times tkill truncate umask uname unlink unlinkat utime utimensat utimes vfork vmsplice wait4
    waitid write writev
"""
_NEW_NAMESPACES = 0x7E020000  # These flags of `clone` ask for new namespaces.
# A program may be one of Linux or of 32 bit, and may ask which it is.
_PERSONALITIES = (0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF)


def allowed_calls() -> frozenset[str]:
    """Returns the names of the calls that are allowed whatever their arguments are."""
    return frozenset(_ALLOWED.split()) - refused_names()


def make_profile() -> dict[str, Any]:
    """Returns the filter as a record of JSON."""
    rules = [_allow_rule(sorted(allowed_calls()))]
    rules += [_allow_rule(["socket"], value=family) for family in SOCKET_FAMILIES.values()]
    rules += [_allow_rule(["personality"], value=persona) for persona in _PERSONALITIES]
    rules.append(_allow_rule(["clone"], value=_NEW_NAMESPACES, operator="SCMP_CMP_MASKED_EQ"))
    rules.append({"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": errno.ENOSYS})
    return {"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": errno.EPERM, "syscalls": rules}


def _allow_rule(names: list[str], value: int | None = None, operator: str = "SCMP_CMP_EQ") -> dict[str, Any]:
    """Returns a rule that allows calls, where a `value` is given only with this first argument.

    For a masked comparison `value` is the mask, and no bit of it may be set.
    """
    rule: dict[str, Any] = {"names": names, "action": "SCMP_ACT_ALLOW"}
    if value is not None:
        rule["args"] = [{"index": 0, "value": value, "valueTwo": 0, "op": operator}]
    return rule
