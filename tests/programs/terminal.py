"""Runs a command as a job on a terminal of its own: stops it with ^Z, lets it go on, ends its input with ^D, or ends it with ^C.

What must come out: the command says `ready`; ^Z stops the job as its shell sees it; after SIGCONT what is typed comes
back; ^D ends it with its own exit code 4; a second start ends by ^C with 130.

With `hang-up COMMAND…` the command is the leader of its session, as under `ssh -t` or in a terminal's own window. Once it says
`ready`, the terminal closes; the exit status of the command is printed.
With `group COMMAND…` the shell's job says `ready` from a process group of its own, and must end by ^C.
"""

import os
import pty
import select
import signal
import sys
import time

BOUND = 60

# Whoever started this may ignore them, as nohup and a script's background job do: the job would, too.
for ignored in signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGTSTP:
    signal.signal(ignored, signal.SIG_DFL)


def shell():
    """What a shell does with a job in its foreground, said on the terminal."""
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    job = os.fork()
    if job == 0:
        os.setpgid(0, 0)
        os.tcsetpgrp(0, os.getpid())
        signal.signal(signal.SIGTTOU, signal.SIG_DFL)
        os.execvp(sys.argv[1], sys.argv[1:])
    while True:
        _, status = os.waitpid(job, os.WUNTRACED)
        os.tcsetpgrp(0, os.getpgrp())
        if not os.WIFSTOPPED(status):
            print(f"ended {os.waitstatus_to_exitcode(status)}", flush=True)
            os._exit(0)
        print("stopped", flush=True)
        os.tcsetpgrp(0, job)
        os.killpg(job, signal.SIGCONT)
        print("continued", flush=True)


def until(master, word):
    seen = b""
    end = time.monotonic() + BOUND
    while word not in seen:
        left = end - time.monotonic()
        if left <= 0 or not select.select([master], [], [], left)[0]:
            sys.exit(f"waited for {word!r}, saw {seen!r}")
        try:
            seen += os.read(master, 1024)
        except OSError:
            sys.exit(f"the terminal closed before {word!r}: {seen!r}")


def hang_up():
    pid, master = pty.fork()
    if pid == 0:
        os.execvp(sys.argv[2], sys.argv[2:])
    until(master, b"ready")
    os.close(master)
    end = time.monotonic() + BOUND
    while time.monotonic() < end:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            print("ended", os.waitstatus_to_exitcode(status))
            sys.exit()
        time.sleep(0.01)
    sys.exit("the command outlives its terminal")


def start():
    pid, master = pty.fork()
    if pid == 0:
        shell()
    until(master, b"ready")
    return master


if sys.argv[1] == "hang-up":
    hang_up()
if sys.argv[1] == "group":
    del sys.argv[1]
    master = start()
    os.write(master, b"\x03")
    until(master, b"ended 130")
    sys.exit()

master = start()
os.write(master, b"\x1a")
until(master, b"continued")
os.write(master, b"typed\n")
until(master, b"got typed")
os.write(master, b"\x04")
until(master, b"ended 4")

master = start()
os.write(master, b"\x03")
until(master, b"ended 130")
print("as it must be")
