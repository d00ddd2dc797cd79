//! Compares the server in memory with a real one: both run the same random programs and must give
//! the same answers.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests that say what they saw"
)]

use std::time::Duration;

use etcd_client::{
    Client, Compare, CompareOp, DeleteOptions, EventType, GetOptions, LeaseGrantOptions,
    PutOptions, SortOrder, SortTarget, Txn, TxnOp, WatchFilterType, WatchOptions,
};
use leasehold_core::backend::Moment;
use leasehold_testbed::Etcd as Real;
use tokio::time::{sleep, timeout};

use super::{Direct, Way};

const KEYS: [&str; 7] = ["a", "a/1", "a/2", "a/20", "b", "b/", "c"];
const LEASES: i64 = 4;
const PROGRAMS: u64 = 40;
const STEPS: usize = 60;

fn key(random: &mut fastrand::Rng) -> &'static str {
    KEYS[random.usize(..KEYS.len())]
}

fn get_options(random: &mut fastrand::Rng, revision: i64) -> GetOptions {
    let mut options = GetOptions::new();
    options = match random.u8(..4) {
        0 => options.with_prefix(),
        1 => options.with_range("b/"),
        2 => options.with_from_key(),
        _ => options,
    };
    if random.bool() {
        options = options.with_limit(random.i64(0..4));
    }
    // Keys that were created together are in no order.
    let by = [SortTarget::Key, SortTarget::Mod][random.usize(..2)];
    match random.u8(..4) {
        0 => options = options.with_sort(SortTarget::Key, SortOrder::Descend),
        1 if by == SortTarget::Key => options = options.with_sort(by, SortOrder::Ascend),
        _ => {}
    }
    match random.u8(..8) {
        0 => options = options.with_keys_only(),
        1 => options = options.with_count_only(),
        2 => options = options.with_revision(random.i64(1..revision + 3)),
        3 => options = options.with_max_create_revision(random.i64(1..revision + 1)),
        4 => options = options.with_min_mod_revision(random.i64(1..revision + 1)),
        5 => options = options.with_max_mod_revision(random.i64(1..revision + 1)),
        6 => options = options.with_min_create_revision(random.i64(1..revision + 1)),
        _ => {}
    }
    options
}

/// A value, and the options of its put.
fn put(random: &mut fastrand::Rng) -> (&'static str, PutOptions) {
    let value = ["x", "y", ""][random.usize(..3)];
    match random.u8(..32) {
        0..6 => (value, PutOptions::new().with_prev_key()),
        6 => (value, PutOptions::new().with_ignore_lease()),
        7 => ("", PutOptions::new().with_ignore_value()),
        8 => (value, PutOptions::new().with_ignore_value()),
        9..16 => (value, PutOptions::new().with_lease(random.i64(0..=LEASES))),
        _ => (value, PutOptions::new()),
    }
}

fn delete_options(random: &mut fastrand::Rng) -> DeleteOptions {
    let options = if random.bool() {
        DeleteOptions::new().with_prev_key()
    } else {
        DeleteOptions::new()
    };
    if random.bool() {
        options.with_prefix()
    } else {
        options
    }
}

fn compare(random: &mut fastrand::Rng, revision: i64) -> Compare {
    let op = [
        CompareOp::Equal,
        CompareOp::Greater,
        CompareOp::Less,
        CompareOp::NotEqual,
    ][random.usize(..4)];
    let key = key(random);
    let at = [0, revision, random.i64(..=revision.max(1))][random.usize(..3)];
    let compare = match random.u8(..6) {
        0 => Compare::version(key, op, random.i64(0..3)),
        1 => Compare::value(key, op, ["", "x", "y"][random.usize(..3)]),
        2 => Compare::lease(key, op, random.i64(0..=LEASES)),
        3 => Compare::mod_revision(key, op, at),
        _ => Compare::create_revision(key, op, at),
    };
    if random.u8(..3) == 0 {
        compare.with_prefix()
    } else {
        compare
    }
}

fn op(random: &mut fastrand::Rng, revision: i64, deep: bool) -> TxnOp {
    let key = key(random);
    match random.u8(..if deep { 8 } else { 7 }) {
        0..3 => {
            let (value, options) = put(random);
            TxnOp::put(key, value, Some(options))
        }
        3 | 4 => TxnOp::delete(key, Some(delete_options(random))),
        5 | 6 => TxnOp::get(key, Some(get_options(random, revision))),
        _ => TxnOp::txn(txn(random, revision, false)),
    }
}

fn txn(random: &mut fastrand::Rng, revision: i64, deep: bool) -> Txn {
    let when: Vec<_> = (0..random.usize(..3))
        .map(|_| compare(random, revision))
        .collect();
    let then: Vec<_> = (0..random.usize(..4))
        .map(|_| op(random, revision, deep))
        .collect();
    let or_else: Vec<_> = (0..random.usize(..4))
        .map(|_| op(random, revision, deep))
        .collect();
    Txn::new().when(when).and_then(then).or_else(or_else)
}

/// The answer without the numbers that identify a server.
fn plain(answer: String) -> String {
    let mut text = answer;
    for name in ["cluster_id: ", "member_id: ", "raft_term: "] {
        let parts: Vec<&str> = text.split(name).collect();
        let rest = parts[1..]
            .iter()
            .map(|part| part.trim_start_matches(|c: char| c.is_ascii_digit()));
        text = [parts[0]]
            .into_iter()
            .chain(rest)
            .collect::<Vec<_>>()
            .join(name);
    }
    text
}

fn told<T: std::fmt::Debug>(answer: Result<T, etcd_client::Error>) -> String {
    plain(match answer {
        Ok(answer) => format!("{answer:?}"),
        Err(etcd_client::Error::GRpcStatus(status)) => {
            format!("{:?}: {}", status.code(), status.message())
        }
        Err(error) => format!("{error}"),
    })
}

/// Runs one step of a program, which follows from the seed.
async fn step(client: &Client, seed: u64, revision: i64) -> String {
    let random = &mut fastrand::Rng::with_seed(seed);
    let mut kv = client.kv_client();
    let mut lease = client.lease_client();
    let key = key(random);
    match random.u8(..16) {
        0..3 => {
            let (value, options) = put(random);
            told(kv.put(key, value, Some(options)).await)
        }
        3 => told(kv.delete(key, Some(delete_options(random))).await),
        4..6 => told(kv.get(key, Some(get_options(random, revision))).await),
        6 | 7 => {
            let id = random.i64(1..=LEASES);
            let ttl = if random.u8(..8) == 0 {
                9_000_000_001
            } else {
                500
            };
            told(
                lease
                    .grant(ttl, Some(LeaseGrantOptions::new().with_id(id)))
                    .await,
            )
        }
        8 => told(lease.revoke(random.i64(1..=LEASES)).await),
        9 if random.u8(..4) == 0 => told(kv.compact(random.i64(0..revision + 2), None).await),
        _ => {
            let txn = txn(random, revision, true);
            let asked = format!("{txn:?}");
            asked + " -> " + &told(kv.txn(txn).await)
        }
    }
}

/// The events that some watches have seen, by the number of the watch, up to a put of the key
/// `end`.
struct Seen {
    sender: etcd_client::WatchRequestSender,
    stream: etcd_client::WatchResponseStream,
    events: Vec<Vec<String>>,
    ends: bool,
}

impl Seen {
    async fn begin(client: &Client) -> Seen {
        let end = Some(WatchOptions::new().with_watch_id(1));
        let (mut sender, stream) = client
            .watch_client()
            .watch("end", end)
            .await
            .unwrap()
            .split();
        let filtered = |filter| WatchOptions::new().with_prefix().with_filters([filter]);
        let all = [
            ("a", WatchOptions::new().with_prefix().with_prev_key()),
            ("a/2", WatchOptions::new()),
            ("a", filtered(WatchFilterType::NoPut)),
            ("", filtered(WatchFilterType::NoDelete)),
        ];
        for (nth, (key, options)) in all.into_iter().enumerate() {
            sender
                .watch(key, Some(options.with_watch_id(nth as i64 + 2)))
                .await
                .unwrap();
        }
        let mut seen = Seen {
            sender,
            stream,
            events: vec![Vec::new(); 9],
            ends: false,
        };
        for _ in 0..5 {
            seen.next().await;
        }
        seen
    }

    async fn next(&mut self) {
        let message = timeout(Duration::from_secs(20), self.stream.message()).await;
        let message = message
            .unwrap_or_else(|_| panic!("no message after {:#?}", self.events))
            .unwrap()
            .unwrap();
        let seen = &mut self.events[usize::try_from(message.watch_id()).unwrap_or(0)];
        if message.created() || message.canceled() {
            let created = message.created();
            let canceled = message.canceled();
            let revision = message.compact_revision();
            seen.push(format!("{created} {canceled} {revision}"));
        }
        seen.extend(
            message
                .events()
                .iter()
                .map(|event| plain(format!("{event:?}"))),
        );
        let is_end = |event: &etcd_client::Event| {
            event.event_type() == EventType::Put && event.kv().is_some_and(|kv| kv.key() == b"end")
        };
        self.ends |= message.watch_id() == 1 && message.events().iter().any(is_end);
    }

    async fn until_the_end(mut self, from: i64, last: i64) -> Vec<Vec<String>> {
        while !self.ends {
            self.next().await;
        }
        // One watch begins at an earlier revision, and one asks for a number that is in use.
        let all = WatchOptions::new()
            .with_from_key()
            .with_start_revision(from)
            .with_watch_id(7);
        self.sender.watch("a", Some(all)).await.unwrap();
        self.sender
            .watch("a", Some(WatchOptions::new().with_watch_id(4)))
            .await
            .unwrap();
        self.sender.cancel(3).await.unwrap();
        let last = format!("mod_revision: {last},");
        let has = |seen: &Seen, watch: usize, what: &str| {
            seen.events[watch].iter().any(|told| told.contains(what))
        };
        let is_told = |seen: &Seen| has(seen, 7, &last);
        let is_compacted = |seen: &Seen| has(seen, 7, "false true");
        while !(is_told(&self) || is_compacted(&self))
            || self.events[0].is_empty()
            || !has(&self, 3, "false true")
        {
            self.next().await;
        }
        self.events
    }
}

/// Makes a server forget everything except its revision.
async fn clear(client: &Client) {
    client
        .kv_client()
        .delete("", Some(DeleteOptions::new().with_all_keys()))
        .await
        .unwrap();
    for id in 1..=LEASES {
        let _ = client.lease_client().revoke(id).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_server_answers_the_same() {
    let server = Real::start().await.unwrap();
    let direct = Direct::start();
    let clients = [
        Client::connect([server.url()], None).await.unwrap(),
        direct.client(&Way::default()).await.unwrap(),
    ];
    let programs = std::env::var("LEASEHOLD_SEEDS")
        .ok()
        .and_then(|it| it.parse().ok())
        .unwrap_or(PROGRAMS);
    for program in 0..programs {
        let random = &mut fastrand::Rng::with_seed(program);
        let mut seen = Vec::new();
        for client in &clients {
            clear(client).await;
            seen.push(Seen::begin(client).await);
        }
        let mut revision = 1;
        let from = random.i64(0..20);
        for nth in 0..STEPS {
            let next = random.u64(..);
            let mut answers = Vec::new();
            for client in &clients {
                answers.push(step(client, next, revision).await);
            }
            assert_eq!(answers[0], answers[1], "program {program}, step {nth}");
            let read = clients[1].kv_client().get("x", None).await.unwrap();
            revision = read.header().unwrap().revision();
        }
        let mut ends = Vec::new();
        for (client, seen) in clients.iter().zip(seen) {
            client.kv_client().put("end", "", None).await.unwrap();
            ends.push(
                seen.until_the_end((revision - from).max(1), revision + 1)
                    .await,
            );
        }
        assert_eq!(ends[0], ends[1], "program {program}");
    }
}

#[tokio::test]
async fn leases_end_with_their_keys_and_others_are_kept() {
    let direct = Direct::start();
    let client = direct.client(&Way::default()).await.unwrap();
    let granted = client.lease_client().grant(1, None).await.unwrap();
    assert_eq!(granted.ttl(), 2, "the least");
    let put = PutOptions::new().with_lease(granted.id());
    client.kv_client().put("a", "", Some(put)).await.unwrap();
    let (mut keeper, mut answers) = client
        .lease_client()
        .keep_alive(granted.id())
        .await
        .unwrap();
    for _ in 0..3 {
        sleep(Duration::from_secs(1)).await;
        keeper.keep_alive().await.unwrap();
        assert_eq!(answers.message().await.unwrap().unwrap().ttl(), 2);
        assert_eq!(direct.entries(), 2);
    }
    let begun = Moment::now();
    while direct.entries() > 0 {
        sleep(Duration::from_millis(20)).await;
        assert!(Moment::now().since(begun) < Duration::from_secs(20));
    }
    assert!(Moment::now().since(begun) > Duration::from_millis(1900));
    keeper.keep_alive().await.unwrap();
    assert_eq!(answers.message().await.unwrap().unwrap().ttl(), 0);
}
