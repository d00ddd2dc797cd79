"""The locks of redis-py and kazoo, driven by lines: `src/driver.rs` says which."""

import json
import sys
import threading
import time

KIND, ADDR = sys.argv[1:3]


def connect():
    """A client of its own, which makes locks."""
    if KIND == "redis":
        import redis

        host, port = ADDR.rsplit(":", 1)
        client = redis.Redis(host=host, port=int(port))
        return lambda name: client.lock(f"redis-py {name}", timeout=60)
    import kazoo.client

    client = kazoo.client.KazooClient(hosts=ADDR)
    client.start()
    return lambda name: client.Lock(f"/kazoo/{name}")


def median(values):
    values = sorted(values)
    return (values[(len(values) - 1) // 2] + values[len(values) // 2]) / 2


def cycles(lock, window):
    for _ in range(3):
        lock.acquire()
        lock.release()
    took = []
    begin = before = time.perf_counter_ns()
    while before - begin < window:
        lock.acquire()
        lock.release()
        now = time.perf_counter_ns()
        took.append(now - before)
        before = now
    return {"operations": len(took), "figures": {"median": median(took)}}


class Crowd:
    """Threads with a client each that want one lock, each again as soon as it has given it back."""

    def __init__(self, locks, section, window):
        self.locks, self.section, self.window = locks, section, window
        self.begin = threading.Barrier(len(locks))
        self.inside = False
        self.released = 0
        self.turns, self.gaps, self.waits, self.errors = [], [], [], []

    def run(self):
        threads = [threading.Thread(target=self.guarded, args=(lock,)) for lock in self.locks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.errors:
            raise self.errors[0]
        turns = sum(self.turns)
        jain = turns**2 / (len(self.turns) * sum(each**2 for each in self.turns))
        figures = {"longest_wait": max(self.waits), "jain": jain}
        if self.gaps:
            figures["gap"] = median(self.gaps)
        return {"operations": turns, "figures": figures}

    def guarded(self, lock):
        try:
            self.compete(lock)
        except Exception as error:
            self.errors.append(error)

    def compete(self, lock):
        turns = 0
        self.begin.wait()
        begin = time.perf_counter_ns()
        while time.perf_counter_ns() - begin < self.window:
            asked = time.perf_counter_ns()
            lock.acquire()
            now = time.perf_counter_ns()
            if self.inside:
                raise RuntimeError("two hold at once")
            self.inside = True
            if self.released > asked:
                self.gaps.append(now - self.released)
            self.waits.append(now - asked)
            turns += 1
            time.sleep(self.section)
            self.inside = False
            self.released = time.perf_counter_ns()
            lock.release()
        self.turns.append(turns)


def main():
    clients = [connect()]
    print("ready", flush=True)
    for line in sys.stdin:
        try:
            kind, name, *numbers = line.split()
            numbers = [int(number) for number in numbers]
            if kind == "cycles":
                answer = cycles(clients[0](name), numbers[0] * 1_000_000)
            else:
                tasks, section, window = numbers
                while len(clients) < tasks:
                    clients.append(connect())
                locks = [client(name) for client in clients[:tasks]]
                answer = Crowd(locks, section / 1e6, window * 1_000_000).run()
        except Exception as error:
            answer = {"error": repr(error)}
        print(json.dumps(answer), flush=True)


main()
