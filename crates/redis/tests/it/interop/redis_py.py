"""redis-py's Lock, moved by words on standard input.

Arguments: the server's port, the key, and the lock's timeout in seconds, 0 for none (which is redis-py's default).
"""

import os
import queue
import sys
import threading

import redis
from redis.exceptions import LockNotOwnedError


def say(text):
    # In one write: two threads speak.
    sys.stdout.write(text + "\n")


def listen(words):
    # A thread of its own: while the lock is waited for, the process still says so, and ends with its input.
    for line in sys.stdin:
        if line.strip() == "state":
            say("waiting" if waits.is_set() else "idle")
        else:
            words.put(line.split())
    os._exit(0)


def count(lock, times, path):
    for _ in range(times):
        lock.acquire()
        with open(path) as file:
            number = int(file.read())
        os.sched_yield()
        with open(path, "w") as file:
            file.write(str(number + 1))
        lock.release()


def obey(lock, word, *args):
    if word == "try":
        return "held" if lock.acquire(blocking=False) else "busy"
    if word == "acquire":
        waits.set()
        held = lock.acquire()
        waits.clear()
        return "held" if held else "busy"
    if word == "extend":
        lock.extend(float(args[0]), replace_ttl=True)
        return "extended"
    if word == "release":
        try:
            lock.release()
        except LockNotOwnedError:
            return "not owned"
        return "released"
    if word == "owned":
        return "yes" if lock.owned() else "no"
    if word == "count":
        count(lock, int(args[0]), args[1])
        return "counted"
    raise ValueError(word)


port, key, timeout = sys.argv[1:]
client = redis.Redis(port=int(port))
client.ping()
lock = client.lock(key, timeout=float(timeout) or None, sleep=0.002)
words = queue.Queue()
waits = threading.Event()
threading.Thread(target=listen, args=(words,), daemon=True).start()
say("ready")
while True:
    say(obey(lock, *words.get()))
