//! What waiters cost while nothing happens, and what their first grant is worth then.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::common::*;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use leasehold_core::backend::{Backend, Claim, LeaseRef, Moment, Renewal};
use leasehold_core::{Guard, Loss, Store};
use leasehold_zookeeper::ZooKeeper;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use zookeeper_client::{Acls, Client, CreateMode};

/// What went through a proxy.
#[derive(Default)]
struct Counter {
    bytes: AtomicU64,
    /// The requests about the queue of the name `a`: neither keep-alives nor pings, which come at
    /// any time.
    of_queue: AtomicU64,
}

impl Counter {
    /// Each request is a packet: its length, its number, its kind, and what it is about.
    fn count_requests(&self, unread: &mut Vec<u8>) {
        while let Some((length, rest)) = unread.split_first_chunk::<4>() {
            let length = u32::from_be_bytes(*length) as usize;
            let Some(request) = rest.get(..length) else {
                return;
            };
            let of_queue = request.windows(QUEUE.len()).any(|part| part == QUEUE);
            self.of_queue.fetch_add(of_queue.into(), Relaxed);
            unread.drain(..4 + length);
        }
    }
}

const QUEUE: &[u8] = b"/test/a";

/// Passes connections on, and counts what goes through.
async fn counted(to: &str) -> (String, Arc<Counter>) {
    let (listener, to) = (
        TcpListener::bind("127.0.0.1:0").await.unwrap(),
        to.to_owned(),
    );
    let addr = listener.local_addr().unwrap().to_string();
    let counted = Arc::new(Counter::default());
    let counter = counted.clone();
    tokio::spawn(async move {
        loop {
            let client = listener.accept().await.unwrap().0;
            let Ok(server) = TcpStream::connect(&to).await else {
                return;
            };
            let ((from_client, to_client), (from_server, to_server)) =
                (client.into_split(), server.into_split());
            tokio::spawn(pass(from_client, to_server, counter.clone(), true));
            tokio::spawn(pass(from_server, to_client, counter.clone(), false));
        }
    });
    (addr, counted)
}

async fn pass(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    counter: Arc<Counter>,
    are_requests: bool,
) {
    let mut buffer = vec![0; 1 << 16];
    let mut unread = Vec::new();
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        counter.bytes.fetch_add(read as u64, Relaxed);
        if are_requests {
            unread.extend_from_slice(&buffer[..read]);
            counter.count_requests(&mut unread);
        }
        if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}

/// An entry of nobody's that holds, and never writes.
async fn foreign_hold(addr: &str) -> (Client, String) {
    let raw = Client::connect(addr).await.unwrap();
    raw.mkdir(
        "/test/a",
        &CreateMode::Persistent.with_acls(Acls::anyone_all()),
    )
    .await
    .unwrap();
    let ephemeral = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    let (_, number) = raw
        .create("/test/a/_c_0-lock-", b"", &ephemeral)
        .await
        .unwrap();
    (raw, format!("/test/a/_c_0-lock-{number}"))
}

/// So many of these clients wait, in turn.
async fn wait_in_line(
    clients: &[ZooKeeper],
    waiters: usize,
    ttl: Duration,
) -> Vec<tokio::task::JoinHandle<Guard>> {
    let stores: Vec<Store> = clients.iter().cloned().map(Store::new).collect();
    let mut tasks = Vec::new();
    for i in 0..waiters {
        let store = stores[i % stores.len()].clone();
        tasks.push(tokio::spawn(async move {
            hold_patiently(&store, "a", ttl).await
        }));
    }
    until(|| async {
        clients[0]
            .inspect(&"a".into())
            .await
            .is_ok_and(|queue| queue.waiters.len() == waiters)
    })
    .await;
    tasks
}

/// Two leases long nothing is read but the sessions' own nodes, and the nodes of others that are
/// waited for. Each of them is read less than three times a lease, whether their clients have many
/// waiters or few.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_waiters_cost_as_much_as_their_own_nodes_and_their_predecessors() {
    limited(async {
        for clients in [1, 10] {
            let server = server().await;
            let (addr, counted) = counted(server.addr()).await;
            let (_raw, _held) = foreign_hold(server.addr()).await;
            let mut all = Vec::new();
            for _ in 0..clients {
                all.push(at(&addr).await);
            }
            let waiters = 200;
            let tasks = wait_in_line(&all, waiters, SHORT).await;
            tokio::time::sleep(SHORT).await;
            let (before, started) = (counted.bytes.load(Relaxed), Moment::now());
            let (sent, ()) = requests(&server, tokio::time::sleep(SHORT * 2)).await;
            let leases = Moment::now().since(started).as_secs_f64() / SHORT.as_secs_f64();
            let each = (counted.bytes.load(Relaxed) - before) as f64 / leases / waiters as f64;
            let of_a_client = sent as f64 / leases / clients as f64;
            println!(
                "{clients} clients: {each:.0} bytes of a waiter and {of_a_client:.1} requests of a client in a lease"
            );
            // A listing is 12,000 bytes here, and was read by each waiter in each lease.
            assert!(each < 500.0, "{each} bytes of a waiter in a lease");
            // Twice a keep-alive and a ping (sessions of the default lease, too), and the renewals.
            assert!(of_a_client < 50.0, "{of_a_client} requests of a client in a lease");
            assert!(tasks.iter().all(|task| !task.is_finished()));
            tasks.iter().for_each(tokio::task::JoinHandle::abort);
        }
    })
    .await;
}

/// A client that holds a name, and waits for many others, reads what it holds at each renewal and
/// the rest once in a lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_holds_few_and_waits_for_many_reads_the_few() {
    limited(async {
        let server = server().await;
        let (addr, counted) = counted(server.addr()).await;
        let (_raw, _held) = foreign_hold(server.addr()).await;
        let all = [at(&addr).await];
        let held = hold(&Store::new(all[0].clone()), "b", SHORT).await;
        let waiters = 200;
        let tasks = wait_in_line(&all, waiters, SHORT).await;
        tokio::time::sleep(SHORT).await;
        let (before, started) = (counted.bytes.load(Relaxed), Moment::now());
        tokio::time::sleep(SHORT * 2).await;
        let leases = Moment::now().since(started).as_secs_f64() / SHORT.as_secs_f64();
        let each = (counted.bytes.load(Relaxed) - before) as f64 / leases / waiters as f64;
        println!("{each:.0} bytes of a waiter in a lease, beside a hold");
        // All entries are 63 bytes of each: three times in a lease they are 190.
        assert!(each < 150.0, "{each} bytes of a waiter in a lease");
        assert!(held.is_valid());
        assert!(tasks.iter().all(|task| !task.is_finished()));
        tasks.iter().for_each(tokio::task::JoinHandle::abort);
    })
    .await;
}

/// What is read by itself is found missing, too, when somebody has removed it by hand, and told
/// nobody.
#[tokio::test]
async fn a_hold_beside_many_waiters_that_is_removed_is_lost_at_the_next_renewal() {
    limited(async {
        let server = server().await;
        let (client, raw) = (client(&server).await, foreign_hold(server.addr()).await.0);
        let hold = fair("b", LONG);
        let grant = granted(&client, &hold).await;
        for _ in 0..8 {
            waiting(&client, &fair("a", LONG)).await;
        }
        let path = grant.place.as_str().to_owned();
        let lease = [LeaseRef::new(Arc::new(hold), grant.place, None)];
        // The first one reads everything.
        for _ in 0..2 {
            assert!(matches!(
                client.renew(&lease).await.unwrap()[..],
                [Renewal::Renewed(_)]
            ));
        }
        raw.delete(&path, None).await.unwrap();
        assert!(matches!(
            client.renew(&lease).await.unwrap()[..],
            [Renewal::Lost(Loss::Gone)]
        ));
    })
    .await;
}

/// Who only waits has nothing to prove: the leader and its quorum are not asked. The grant is worth
/// a lease all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_writes_nothing_and_is_granted_more_than_half_a_lease() {
    limited(async {
        let server = server().await;
        let (raw, held) = foreign_hold(server.addr()).await;
        let waiters = wait_in_line(&[client(&server).await, client(&server).await], 2, SHORT).await;
        let zxid = async || {
            let answer = server.four_letter_word("srvr").await.unwrap();
            answer
                .lines()
                .find_map(|line| line.strip_prefix("Zxid: "))
                .unwrap()
                .to_owned()
        };
        let before = zxid().await;
        tokio::time::sleep(SHORT * 2).await;
        assert_eq!(zxid().await, before, "somebody wrote");
        raw.delete(&held, None).await.unwrap();
        // Whoever came first.
        let mut waiters: FuturesUnordered<_> = waiters.into_iter().collect();
        while let Some(guard) = waiters.next().await {
            let guard = guard.unwrap();
            assert!(guard.remaining() > SHORT * 2 / 5, "{:?}", guard.remaining());
            // It is kept, too.
            tokio::time::sleep(SHORT).await;
            assert!(guard.remaining() > SHORT / 4, "{:?}", guard.remaining());
            assert_ne!(zxid().await, before, "a hold is proved by writes");
            guard.release().await.unwrap();
        }
    })
    .await;
}

/// A waiter whose session lost its connection while nothing was written is still there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_never_wrote_outlives_its_connection() {
    limited(async {
        let server = server().await;
        let (raw, held) = foreign_hold(server.addr()).await;
        let proxy = leasehold_testbed::Proxy::to(server.addr()).await.unwrap();
        let client = at(proxy.addr()).await;
        let waits = fair("a", SHORT);
        let place = waiting(&client, &waits).await.place;
        let lease = [LeaseRef::new(Arc::new(waits.clone()), place.clone(), None)];
        for _ in 0..4 {
            tokio::time::sleep(SHORT / 2).await;
            proxy.disconnect().await;
            until(|| async { client.claim(&waits).await.is_ok() }).await;
            until(|| async {
                let answer = client.renew(&lease).await.unwrap().remove(0);
                assert!(!matches!(answer, Renewal::Lost(_)), "{answer:?}");
                matches!(answer, Renewal::Renewed(_))
            })
            .await;
        }
        assert_eq!(
            waiting(&client, &waits).await.place,
            place,
            "the same place"
        );
        raw.delete(&held, None).await.unwrap();
        assert_eq!(granted(&client, &waits).await.place, place);
    })
    .await;
}

/// As long as nothing has changed, a waiter that claims again reads what it watches.
#[tokio::test]
async fn a_claim_again_costs_one_request_and_a_last_look_three() {
    limited(async {
        let server = server().await;
        let (addr, counted) = counted(server.addr()).await;
        let client = at(&addr).await;
        let mut line: Vec<Claim> = (0..4).map(|_| fair("a", LONG)).collect();
        granted(&client, &line[0]).await;
        for claim in &line[1..] {
            waiting(&client, claim).await;
        }
        for who in &mut line[1..] {
            // The caller of a last look is told the holder, so it reads the queue and its first
            // entry, too.
            for (is_last, most) in [(false, 32), (true, 3 * 32)] {
                who.is_last = is_last;
                let before = counted.of_queue.load(Relaxed);
                for _ in 0..32 {
                    waiting(&client, who).await;
                }
                let sent = counted.of_queue.load(Relaxed) - before;
                assert!(
                    sent <= most,
                    "{sent} requests about the queue (last: {is_last})"
                );
            }
        }
    })
    .await;
}
