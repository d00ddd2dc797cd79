//! What the server counts: requests and bytes of a hand-over, of a waiter that joins, and of
//! waiters to whom nothing happens. They do not depend on the machine.

use std::ops::Sub;
use std::time::Duration;

use crate::common::*;
use leasehold_core::backend::{Backend, Moment};
use leasehold_testbed as testbed;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

/// What the server has counted since it started, without what this costs.
#[derive(Clone, Copy, Debug)]
struct Counts {
    /// Messages to it: a stream has many.
    requests: f64,
    /// In both directions.
    bytes: f64,
}

impl Counts {
    async fn of(server: &testbed::Etcd) -> Counts {
        let (mut stream, mut answer) = (
            TcpStream::connect(server.addr()).await.unwrap(),
            String::new(),
        );
        stream
            .write_all(b"GET /metrics HTTP/1.0\r\n\r\n")
            .await
            .unwrap();
        stream.read_to_string(&mut answer).await.unwrap();
        let sum = |prefix: &str| {
            let lines = answer.lines().filter(|line| line.starts_with(prefix));
            lines
                .filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok())
                .sum()
        };
        Counts {
            requests: sum("grpc_server_msg_received_total{"),
            bytes: sum("etcd_network_client_grpc_"),
        }
    }

    fn per(self, n: usize) -> Counts {
        Counts {
            requests: self.requests / n as f64,
            bytes: self.bytes / n as f64,
        }
    }
}

impl Sub for Counts {
    type Output = Counts;

    fn sub(self, other: Counts) -> Counts {
        Counts {
            requests: self.requests - other.requests,
            bytes: self.bytes - other.bytes,
        }
    }
}

/// What so many hand-overs in a circle of clients have cost, each, when nothing else came in
/// between.
async fn least(
    server: &testbed::Etcd,
    clients: usize,
    n: usize,
    mut work: impl AsyncFnMut(),
) -> Counts {
    let mut least = Counts {
        requests: f64::MAX,
        bytes: f64::MAX,
    };
    for _ in 0..3 {
        let (before, begun) = (Counts::of(server).await, Moment::now());
        work().await;
        let in_turn = Moment::now()
            .since(begun)
            .mul_f64(clients as f64 / n as f64);
        let each = (Counts::of(server).await - before).per(n);
        let requests = each.requests - asked_again(clients, in_turn);
        least = Counts {
            requests: least.requests.min(requests),
            bytes: least.bytes.min(each.bytes),
        };
    }
    least
}

/// How often a waiter may have claimed again, and watched, while it waited for so long: it does so
/// after 1 s, and 20 ms for each before it. Where the machine is not very slow none waits so long.
fn asked_again(clients: usize, waited: Duration) -> f64 {
    let times = waited.as_secs_f64() / (1.0 + 0.02 * clients as f64);
    if times < 0.5 { 0.0 } else { 2.0 * times }
}

/// The number of many clients: fewer where a glance is enough.
fn many() -> usize {
    match std::env::var_os("LEASEHOLD_GLANCE") {
        Some(_) => 40,
        None => 100,
    }
}

/// Without naming the successor there are a third request and a fourth; with a mirror in each
/// client there are thousands of bytes.
#[tokio::test]
async fn a_hand_over_among_a_hundred_clients_costs_little_more_than_among_two() {
    within(120, async {
        for (clients, most_requests, most_bytes) in [(2, 2.1, 1_000.0), (many(), 2.5, 1_500.0)] {
            let server = server().await;
            let mut circle = Circle::of(&server, clients).await;
            circle.hand_over_often(3 * clients).await;
            let each = least(&server, clients, 100, async || {
                circle.hand_over_often(100).await;
            })
            .await;
            println!("{clients} clients: {each:?} for each hand-over");
            assert!(
                each.requests <= most_requests && each.bytes <= most_bytes,
                "{clients} clients: {each:?}"
            );
        }
    })
    .await;
}

/// Nobody can guess who stands behind whom: each is told.
#[tokio::test]
async fn a_hand_over_in_changing_orders_costs_the_same_among_twenty_and_a_hundred_clients() {
    within(300, async {
        let mut bytes = Vec::new();
        for clients in [20, many()] {
            let server = server().await;
            let (mut circle, mut random) = (
                Circle::of(&server, clients).await,
                fastrand::Rng::with_seed(7),
            );
            // A tenth is out, and one of these comes as another goes.
            let mut out = Vec::new();
            for _ in 0..clients / 10 {
                out.push(circle.release().await);
                circle.next().await;
            }
            let mut hand_overs = async |times: usize| {
                for _ in 0..times {
                    out.push(circle.release().await);
                    circle.comes(out.swap_remove(random.usize(..out.len())));
                    circle.next().await;
                }
            };
            hand_overs(8 * clients).await;
            let each = least(&server, clients, 200, async || hand_overs(200).await).await;
            println!("{clients} clients in changing orders: {each:?} for each hand-over");
            assert!(
                each.requests <= 2.5 && each.bytes <= 1_500.0,
                "{clients} clients: {each:?}"
            );
            bytes.push(each.bytes);
        }
        assert!(bytes[1] < bytes[0] * 1.3, "{bytes:?}");
    })
    .await;
}

/// With a mirror in each client, each that joins is reported to all that wait, and reads them all.
#[tokio::test]
async fn a_client_that_joins_a_long_queue_costs_what_it_costs_in_a_short_one() {
    within(120, async {
        let server = server().await;
        let (mut clients, mut joined) = (Vec::new(), Vec::new());
        for more in [20, 10, 30] {
            let before = Counts::of(&server).await;
            for _ in 0..more {
                let (client, claim) = (client(server.addr()).await, fair("a"));
                drop(client.claim(&claim).await.unwrap());
                clients.push(client);
            }
            // What comes after the answer of a claim: the watches, and the reads of what they
            // watch.
            tokio::time::sleep(Duration::from_millis(500)).await;
            joined.push((Counts::of(&server).await - before).per(more).bytes);
        }
        println!("{joined:?} bytes for each that joins");
        assert!(
            joined[2] < 4_000.0 && joined[2] < joined[1] * 1.2,
            "{joined:?}"
        );
    })
    .await;
}

/// Each of them would ask once per lease by itself.
#[tokio::test]
async fn idle_waiters_of_one_client_cost_their_renewals() {
    within(60, async {
        let server = server().await;
        let ttl = Duration::from_secs(3);
        let (holder, waiters) = (store(&server).await, store(&server).await);
        let _held = holder.lock("a").acquire().await.unwrap();
        let tasks: Vec<_> = (0..60)
            .map(|_| tokio::spawn(waiters.lock("a").ttl(ttl).acquire()))
            .collect();
        until_keys(&server, 61).await;
        tokio::time::sleep(ttl / 10).await;
        let before = Counts::of(&server).await;
        tokio::time::sleep(ttl * 2).await;
        let spent = Counts::of(&server).await - before;
        println!("{spent:?} in two leases of sixty waiters");
        // Five renewals of two messages, and three questions.
        assert!(spent.requests <= 20.0, "{spent:?}");
        tasks.iter().for_each(JoinHandle::abort);
    })
    .await;
}
