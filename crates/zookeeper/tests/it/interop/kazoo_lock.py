"""A lock of kazoo's, moved by words on standard input.

Arguments: the server's port, the lock's node, the session timeout in seconds, the class (Lock, ReadLock, WriteLock), and the
patterns it is told to look for besides its own.
"""

import os
import queue
import sys
import threading

from kazoo.client import KazooClient
from kazoo.recipe import lock as recipes


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


def obey(client, lock, word, *args):
    if word == "try":
        return "held" if lock.acquire(blocking=False) else "busy"
    if word == "acquire":
        waits.set()
        held = lock.acquire()
        waits.clear()
        return "held" if held else "busy"
    if word == "release":
        # Releasing deletes the node by its path; kazoo does not say whether it was still there.
        return "released" if lock.release() else "not acquired"
    if word == "node":
        return "there" if lock.node and client.exists(lock.path + "/" + lock.node) else "gone"
    if word == "count":
        count(lock, int(args[0]), args[1])
        return "counted"
    raise ValueError(word)


port, node, timeout, kind, *patterns = sys.argv[1:]
client = KazooClient("127.0.0.1:" + port, timeout=float(timeout))
client.start()
lock = getattr(recipes, kind)(client, node, "kazoo", extra_lock_patterns=patterns)
words = queue.Queue()
waits = threading.Event()
threading.Thread(target=listen, args=(words,), daemon=True).start()
say("ready")
while True:
    say(obey(client, lock, *words.get()))
