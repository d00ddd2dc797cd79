"""A client of another library in the campaign. It takes the locks of the others, and writes the same lines.

Arguments: the number of its process, the folder of the history, the store's URL, the lease in milliseconds, a seed. It works until its
standard input says `drain`, and ends at once when its input does.

It sends no token and writes to no resource. What it says to be valid it has proved before each time: the server has answered that the hold
is there. From the moment before it asked that is good for half a lease, whatever becomes of the server's limits meanwhile.
"""

import ctypes
import json
import os
import random
import select
import signal
import subprocess
import sys
import threading
import time
from urllib.parse import urlsplit

LIBC = ctypes.CDLL(None)
LOCKS = ["orders", "catalog", "slots", "counter", "spare"]


def now():
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class Busy(Exception):
    """It certainly has nothing, and leaves nothing behind."""


class RedisPy:
    """redis-py's Lock. It polls, stands in no queue, and may pass those that do."""

    policy = "fast"

    def __init__(self, url, lease):
        import redis

        self.refused = redis.exceptions.ResponseError
        self.lease = lease
        self.redis = redis.Redis(url.hostname, url.port, socket_timeout=lease, socket_connect_timeout=lease)

    def acquire(self, name, limit):
        self.lock = self.redis.lock(name, timeout=self.lease, sleep=0.005)
        try:
            if not self.lock.acquire(blocking_timeout=limit):
                raise Busy
        except self.refused as error:
            # No memory is left.
            raise Busy from error

    def prove(self):
        self.lock.reacquire()

    def release(self):
        self.lock.release()

    def forget(self):
        # If it cannot say so, the lease ends by itself.
        if self.lock.local.token:
            self.lock.release()


class Kazoo:
    """kazoo's Lock, with the pattern by which it sees our entries."""

    policy = "fair"

    def __init__(self, url, lease):
        self.hosts, self.root, self.lease = url.netloc, url.path, lease
        self.connect()

    def connect(self):
        from kazoo import client, exceptions

        self.error, self.timeout = exceptions.KazooException, exceptions.LockTimeout
        retry = dict(max_tries=-1, delay=0.05, max_delay=0.2)
        self.client = client.KazooClient(self.hosts, timeout=self.lease, connection_retry=retry)
        self.client.start_async()
        while not self.client.connected:
            time.sleep(0.02)

    def acquire(self, name, limit):
        # A new one each time: one that has made the lock's node does not make it again.
        self.lock = self.client.Lock(f"{self.root}/{name}", "kazoo", extra_lock_patterns=["-lock-"])
        try:
            if not self.lock.acquire(timeout=limit):
                raise RuntimeError("neither granted nor refused")
        except self.timeout as error:
            if self.client.exists(f"{self.lock.path}/{self.lock.node}") is None:
                raise Busy from error
            raise

    def prove(self):
        stat = self.client.exists(f"{self.lock.path}/{self.lock.node}")
        if stat is None or stat.ephemeralOwner != self.client.client_id[0]:
            raise RuntimeError("the node is gone")

    def release(self):
        if not self.lock.release():
            raise RuntimeError("it was not acquired")

    def forget(self):
        # A node that could not be deleted stays as long as its session.
        try:
            self.client.stop()
            self.client.close()
        finally:
            self.connect()


class Etcdctl:
    """`etcdctl lock`, which holds until it is told to end, whatever becomes of its lease."""

    policy = "fair"

    def __init__(self, url, lease):
        user, _, servers = url.netloc.rpartition("@")
        self.words = ["etcdctl", "--endpoints", servers] + (["--user", user] if user else [])
        self.lease = round(lease)

    def start(self, *words):
        return subprocess.Popen(
            self.words + list(words),
            env=dict(os.environ, ETCDCTL_API="3"),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            preexec_fn=with_its_parent,
        )

    def acquire(self, name, limit):
        self.process = self.start("lock", "--ttl", str(self.lease), name)
        # Whoever is told to end now may say a key first, and delete it after that: it counts for nothing.
        if not select.select([self.process.stdout], [], [], limit)[0]:
            raise TimeoutError
        self.key = self.process.stdout.readline().decode().strip()

    def prove(self):
        # The lease is there, and after that the key: so the key is good for as long as the lease.
        if "with TTL" not in self.ask("lease", "keep-alive", "--once", self.key.rpartition("/")[2]):
            raise RuntimeError("the lease is over")
        if self.key not in self.ask("get", "--keys-only", self.key):
            raise RuntimeError("the key is gone")

    def ask(self, *words):
        with self.start(*words) as process:
            try:
                return process.communicate(timeout=self.lease)[0].decode()
            finally:
                process.kill()

    def release(self):
        self.process.send_signal(signal.SIGINT)
        if self.process.wait(self.lease) != 0:
            raise RuntimeError("not unlocked")

    def forget(self):
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(self.lease)
        finally:
            self.process.kill()
            self.process.wait()


def with_its_parent():
    # PR_SET_PDEATHSIG: who kills this client ends what it holds.
    LIBC.prctl(1, signal.SIGKILL)


CLIENTS = {"redis": RedisPy, "zookeeper": Kazoo, "etcd": Etcdctl}


class Record:
    def __init__(self, folder, p):
        self.p = p
        self.file = os.open(f"{folder}/{p:06}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, t, ev, **fields):
        line = json.dumps({"t": t, "p": self.p, "ev": ev, **fields}) + "\n"
        # One call: the lines of several threads do not mix.
        os.write(self.file, line.encode())


def listen(drains, lease):
    for line in sys.stdin:
        if line.strip() == "drain":
            drains.set()
            # A call of that library may hang: this is no trouble of ours, and its session ends as after a death.
            threading.Timer(5 + 2 * lease, os._exit, [0]).start()
    os._exit(3)


def note_stalls(record):
    tick, last = 0.01, now()
    while True:
        time.sleep(tick)
        before, last = last, now()
        stalled = last - before - int(tick * 1e9)
        if stalled > tick * 1e9:
            record.write(now(), "stall", ns=stalled)


class Worker:
    def __init__(self, client, record, lease, seed):
        self.client, self.record, self.lease = client, record, lease
        self.random, self.op = random.Random(seed), record.p * 1_000_000_000

    def once(self):
        """Asks for a lock, uses it for a while, and gives it back."""
        self.op += 1
        name, limit = self.random.choice(LOCKS), self.random.uniform(0.5, 2) * self.lease
        ask = dict(lock=name, mode="exclusive", policy=self.client.policy)
        self.record.write(now(), "invoke", op=self.op, **ask)
        try:
            self.client.acquire(name, limit)
            valid = self.proved()[1]
            t = now()
        except Busy:
            return self.record.write(now(), "fail", op=self.op, busy=False)
        except Exception:
            valid, t = 0, 0
        if valid <= t:
            self.forget()
            return self.record.write(now(), "info", op=self.op)
        self.record.write(t, "ok", op=self.op, tok=0, valid=valid)
        self.hold()

    def hold(self):
        until = now() + self.random.uniform(0, 0.5) * self.lease * 1e9
        try:
            while now() < until:
                t, valid = self.proved()
                self.record.write(t, "use", op=self.op, valid=valid)
                time.sleep(self.random.uniform(0, 0.05) * self.lease)
        except Exception:
            self.record.write(now(), "release", op=self.op, dropped=True)
            return self.forget()
        self.record.write(now(), "release", op=self.op, dropped=False)
        try:
            self.client.release()
            self.record.write(now(), "released", op=self.op)
        except Exception:
            self.record.write(now(), "unreleased", op=self.op)
            self.forget()

    def proved(self):
        t = now()
        self.client.prove()
        return t, t + int(self.lease / 2 * 1e9)

    def forget(self):
        try:
            self.client.forget()
        except Exception as error:
            print(f"forgetting: {error!r}", file=sys.stderr)


def main(p, folder, url, lease, seed):
    drains, record, lease = threading.Event(), Record(folder, int(p)), int(lease) / 1000
    threading.Thread(target=listen, args=(drains, lease), daemon=True).start()
    threading.Thread(target=note_stalls, args=(record,), daemon=True).start()
    url = urlsplit(url)
    worker = Worker(CLIENTS[url.scheme](url, lease), record, lease, int(seed))
    while not drains.is_set():
        worker.once()
        time.sleep(worker.random.uniform(0, 0.02))
    # Its session would live on for a while.
    os._exit(0)


main(*sys.argv[1:])
