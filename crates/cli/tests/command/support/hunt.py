# Rounds in which a family that is hard to find and to kill is under a lock, the lock is lost, and none must live when the command has
# ended. The first process of a PID namespace, so that every other process in it is of the family.
#   hunt.py rounds L DIR WHAT N ROUNDS   with L as `leasehold`
#   hunt.py WHAT DIR N                   a family:
#     chain    N members, each in a session of its own, below each other, with falling process ids as after a wrap
#     bomb     processes that fork and end, in sessions of their own, N in a row at a time
#     threads  a daemon whose first thread has ended
import ctypes, os, signal, subprocess, sys, threading, time

LAST = "/proc/sys/kernel/ns_last_pid"
LINK = f"""
trap '' TERM
if [ "$2" = 0 ]; then
    echo "$LEASEHOLD_FENCING_TOKEN" > "$1/new"; mv "$1/new" "$1/ready"
else
    echo $((20000 + $2 * 4)) 2> /dev/null > {LAST}
    setsid sh "$0" "$1" $(($2 - 1)) &
fi
exec sleep 1000
"""


def ready(folder):
    with open(folder + "/new", "w") as file:
        file.write(os.environ["LEASEHOLD_FENCING_TOKEN"])
    os.rename(folder + "/new", folder + "/ready")


def chain(folder, members):
    with open(folder + "/link", "w") as link:
        link.write(LINK)
    os.execvp("sh", ["sh", folder + "/link", folder, str(members - 1)])


def bomb(folder, members):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ready(folder)
    for _ in range(6):
        if os.fork() == 0:
            for _ in range(members):
                if os.fork():
                    os._exit(0)
                os.setsid()
            time.sleep(1000)
    time.sleep(1000)


def threads(folder, _):
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)

        def go_on():
            ready(folder)
            time.sleep(1000)

        threading.Thread(target=go_on).start()
        ctypes.CDLL(None).pthread_exit(None)
    time.sleep(1000)


def living():
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            stats = [open(f"/proc/{pid}/task/{task}/stat").read() for task in os.listdir(f"/proc/{pid}/task")]
        except OSError:
            continue
        if int(pid) != os.getpid() and any(stat.rsplit(") ", 1)[1][0] not in "ZX" for stat in stats):
            found.append(int(pid))
    return found


def rounds(leasehold, folder, what, members, count):
    worst = 0
    for turn in range(int(count)):
        if os.path.exists(folder + "/ready"):
            os.remove(folder + "/ready")
        program = [sys.executable, __file__, what, folder, members]
        holder = subprocess.Popen([leasehold, "run", "job", "--ttl", "3s", "--", *program], stderr=subprocess.DEVNULL)
        give_up = time.monotonic() + 60
        while not os.path.exists(folder + "/ready"):
            if time.monotonic() > give_up or holder.poll() is not None:
                sys.exit(f"round {turn}: no family, {holder.poll()}")
            time.sleep(0.005)
        token = open(folder + "/ready").read().strip()
        family = len(living())
        subprocess.run([leasehold, "break", "job", "--token", token], check=True, stdout=subprocess.DEVNULL)
        begin = time.monotonic()
        code = holder.wait()
        worst = max(worst, time.monotonic() - begin)
        left = living()
        if code != 76 or left:
            sys.exit(f"round {turn}: {len(left)} of {family} outlived the lock, code {code}")
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
    print(f"{count} rounds, {family} processes, at most {worst:.2f} s from the loss to the end")


if __name__ == "__main__":
    what, *words = sys.argv[1:]
    if what == "rounds":
        rounds(*words)
    else:
        {"chain": chain, "bomb": bomb, "threads": threads}[what](words[0], int(words[1]))
