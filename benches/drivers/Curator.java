// Curator's InterProcessMutex, driven by lines: `src/driver.rs` says which.

import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.*;
import org.apache.curator.framework.*;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.RetryNTimes;

public class Curator {
    static String addr;
    static final List<CuratorFramework> clients = new ArrayList<>();

    static InterProcessMutex lock(int client, String name) throws Exception {
        while (clients.size() <= client) {
            CuratorFramework next = CuratorFrameworkFactory.newClient(addr, new RetryNTimes(3, 100));
            next.start();
            next.blockUntilConnected();
            clients.add(next);
        }
        return new InterProcessMutex(clients.get(client), "/curator/" + name);
    }

    static double median(List<Long> values) {
        Collections.sort(values);
        int size = values.size();
        return (values.get((size - 1) / 2) + values.get(size / 2)) / 2.0;
    }

    static String cycles(String name, long window) throws Exception {
        InterProcessMutex lock = lock(0, name);
        for (int i = 0; i < 3; i++) {
            lock.acquire();
            lock.release();
        }
        List<Long> took = new ArrayList<>();
        long begin = System.nanoTime(), before = begin;
        while (before - begin < window) {
            lock.acquire();
            lock.release();
            long now = System.nanoTime();
            took.add(now - before);
            before = now;
        }
        return String.format(Locale.ROOT, "{\"operations\": %d, \"figures\": {\"median\": %f}}", took.size(), median(took));
    }

    /** Threads with a client each that want one lock, each again as soon as it has given it back. */
    static String turns(String name, int tasks, long sectionMicros, long window) throws Exception {
        CyclicBarrier start = new CyclicBarrier(tasks);
        AtomicBoolean inside = new AtomicBoolean();
        AtomicLong released = new AtomicLong(), longest = new AtomicLong();
        List<Long> gaps = Collections.synchronizedList(new ArrayList<>());
        ExecutorService pool = Executors.newFixedThreadPool(tasks);
        List<Future<Long>> all = new ArrayList<>();
        for (int task = 0; task < tasks; task++) {
            InterProcessMutex lock = lock(task, name);
            all.add(pool.submit(() -> {
                long turns = 0;
                start.await();
                long begin = System.nanoTime();
                while (System.nanoTime() - begin < window) {
                    long asked = System.nanoTime();
                    lock.acquire();
                    long now = System.nanoTime();
                    if (inside.getAndSet(true)) throw new IllegalStateException("two hold at once");
                    if (released.get() > asked) gaps.add(now - released.get());
                    longest.accumulateAndGet(now - asked, Math::max);
                    turns++;
                    TimeUnit.MICROSECONDS.sleep(sectionMicros);
                    inside.set(false);
                    released.set(System.nanoTime());
                    lock.release();
                }
                return turns;
            }));
        }
        double sum = 0, squares = 0;
        for (Future<Long> task : all) {
            double turns = task.get();
            sum += turns;
            squares += turns * turns;
        }
        pool.shutdown();
        String gap = gaps.isEmpty() ? "" : String.format(Locale.ROOT, "\"gap\": %f, ", median(gaps));
        return String.format(
            Locale.ROOT, "{\"operations\": %.0f, \"figures\": {%s\"longest_wait\": %d, \"jain\": %f}}",
            sum, gap, longest.get(), sum * sum / (tasks * squares));
    }

    public static void main(String[] arguments) throws Exception {
        addr = arguments[0];
        lock(0, "warm");
        System.out.println("ready");
        Scanner input = new Scanner(System.in);
        while (input.hasNextLine()) {
            String[] words = input.nextLine().split(" ");
            try {
                System.out.println(words[0].equals("cycles")
                    ? cycles(words[1], Long.parseLong(words[2]) * 1_000_000)
                    : turns(words[1], Integer.parseInt(words[2]), Long.parseLong(words[3]), Long.parseLong(words[4]) * 1_000_000));
            } catch (Exception e) {
                System.out.println("{\"error\": \"" + e.toString().replace('"', '\'').replace('\n', ' ') + "\"}");
            }
        }
        System.exit(0);
    }
}
