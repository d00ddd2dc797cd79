//! Lists of nodes that change while programs run. Each rule of the change has a test in which its absence would give two holders.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use leasehold_core::backend::{Backend, Claim, Claimed, Grant, Mode, Moment, Renewal, WaitPolicy};
use leasehold_core::{ErrorKind, Result, Store};
use leasehold_redis::client::IntoConnectionInfo;
use leasehold_redis::redlock::{Config, NodesChange, Redlock, change_nodes};
use leasehold_testbed::{Proxy, Redis, Reply};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::common::*;

/// Nodes by their places, as `abc`.
struct Cluster {
    nodes: Vec<Redis>,
    /// The addresses by which lists name the nodes.
    addrs: Vec<String>,
}

impl Cluster {
    async fn of(n: usize) -> Cluster {
        let nodes = nodes(n).await;
        let addrs = nodes.iter().map(|node| node.addr().to_owned()).collect();
        Cluster { nodes, addrs }
    }

    /// Nodes behind proxies, in the same order.
    async fn behind_proxies(n: usize) -> (Cluster, Vec<Proxy>) {
        let nodes = nodes(n).await;
        let mut ways = Vec::new();
        for node in &nodes {
            ways.push(Proxy::to(node.addr()).await.unwrap());
        }
        let addrs = ways.iter().map(|way| way.addr().to_owned()).collect();
        (Cluster { nodes, addrs }, ways)
    }

    fn place(name: char) -> usize {
        usize::from(name as u8 - b'a')
    }

    fn node(&self, name: char) -> &Redis {
        &self.nodes[Self::place(name)]
    }

    fn addr(&self, name: char) -> &str {
        &self.addrs[Self::place(name)]
    }

    fn url(&self, list: &str) -> String {
        self.patient_url(list, 5000)
    }

    /// A URL whose requests wait for an answer for this number of milliseconds.
    fn patient_url(&self, list: &str, timeout: u32) -> String {
        let addrs = list.chars().map(|name| self.addr(name));
        format!("{}?timeout={timeout}", url(addrs))
    }

    fn config(&self, list: &str) -> Config {
        Config::from_url(&self.url(list)).unwrap()
    }

    async fn client(&self, list: &str) -> Redlock {
        let url = self.url(list);
        connected(|| Redlock::connect(&url)).await
    }

    async fn try_change(&self, old: &str, new: &str) -> Result<NodesChange> {
        change_nodes(&self.config(old), &self.config(new), drop).await
    }

    /// Changes the list, and returns the nodes that have no vote.
    async fn change(&self, old: &str, new: &str) -> usize {
        let changed = self.try_change(old, new).await.unwrap();
        let expected: BTreeSet<&str> = new.chars().map(|name| self.addr(name)).collect();
        let nodes: BTreeSet<&str> = changed.nodes.iter().map(String::as_str).collect();
        assert_eq!(nodes, expected);
        changed.without_vote.len()
    }

    async fn tell(&self, name: char, words: &[&str]) {
        self.node(name).command(words).await.unwrap();
    }

    async fn nodes_at(&self, name: char) -> String {
        let nodes = self.node(name).command(&["HGET", "{}:rn", "nodes"]);
        nodes.await.unwrap().text().unwrap()
    }

    async fn number(&self, name: char) -> Option<String> {
        let number = ["HGET", "{}:rn", "number"];
        self.node(name).command(&number).await.unwrap().text()
    }
}

fn held(name: &str, ttl: u64) -> Claim {
    let ttl = Duration::from_millis(ttl);
    claim(name, Mode::Exclusive, WaitPolicy::Try, ttl)
}

/// A program whose holds are renewed.
fn of(store: Redlock) -> Store {
    Store::new(store).ttl(Duration::from_secs(1))
}

async fn is_granted(store: &Redlock, claim: &Claim) -> bool {
    matches!(store.claim(claim).await, Ok(Claimed::Granted(_)))
}

/// Returns whether it is renewed. The first renewal may only tell the client that its list has another number.
async fn is_renewed(store: &Redlock, claim: &Claim, grant: &Grant) -> bool {
    matches!(
        renewed(store, claim, grant.token).await,
        Renewal::Renewed(_)
    )
}

#[tokio::test]
async fn a_program_goes_on_through_one_change_and_not_through_two() {
    bounded(async {
        let all = Cluster::of(4).await;
        let old = all.client("abc").await;
        let first = of(all.client("abc").await)
            .lock("a")
            .acquire()
            .await
            .unwrap();
        assert_eq!(all.change("abc", "abc").await, 0);
        assert_eq!(all.change("abc", "abcd").await, 0);
        assert!(first.is_valid());
        // Its hold excludes those that go by the new list, and the other way round.
        let new = all.client("abcd").await;
        assert!(!is_granted(&new, &held("a", 1000)).await);
        let second = of(all.client("abcd").await)
            .lock("b")
            .acquire()
            .await
            .unwrap();
        assert!(!is_granted(&old, &held("b", 1000)).await);
        // Tokens go on.
        let token = first.fencing_token();
        drop(first.release().await);
        assert!(soon(&new, &held("a", 500)).await.token > token);
        granted(&old, &held("c", 1000)).await;
        // Once more: the leases of `abc` end before its programs are left behind.
        assert_eq!(all.change("abcd", "bcd").await, 0);
        assert_eq!(
            kind(old.claim(&held("d", 1000)).await),
            ErrorKind::OtherStore
        );
        assert!(second.is_valid());
        let last = all.client("bcd").await;
        granted(&last, &held("c", 500)).await;
        assert!(!is_granted(&last, &held("b", 1000)).await);
        assert_eq!(
            kind(Redlock::connect(&all.url("abc")).await),
            ErrorKind::OtherStore
        );
    })
    .await;
}

#[tokio::test]
async fn a_new_number_of_the_same_list_is_learned_on_the_way() {
    bounded(async {
        let all = Cluster::of(3).await;
        let store = all.client("abc").await;
        let hold = held("a", 60_000);
        let grant = granted(&store, &hold).await;
        for name in ["b", "c", "d"] {
            // It closes the list, and may not open it yet: the lease of the hold is awaited.
            let change = all.try_change("abc", "abc");
            timeout(Duration::from_millis(500), change).await.ok();
            granted(&store, &held(name, 200)).await;
            assert!(is_renewed(&store, &hold, &grant).await);
        }
    })
    .await;
}

/// The run died after it had opened one node. The others are closed for it.
#[tokio::test]
async fn locks_go_on_while_a_number_is_open_at_one_node() {
    bounded(async {
        let all = Cluster::of(3).await;
        all.change("abc", "abc").await;
        let old = all.client("abc").await;
        all.change("abc", "abc").await;
        all.tell('a', &["HSET", "{}:rn", "number", "3"]).await;
        for name in ['b', 'c'] {
            all.tell(name, &["HSET", "{}:rn", "closed", "1"]).await;
        }
        granted(&all.client("abc").await, &held("a", 1000)).await;
        granted(&old, &held("b", 1000)).await;
    })
    .await;
}

#[tokio::test]
async fn a_hold_that_ends_later_outlives_a_new_number_of_the_list() {
    bounded(async {
        let all = Cluster::of(3).await;
        all.change("abc", "abc").await;
        let store = all.client("abc").await;
        let hold = held("a", 60_000);
        granted(&store, &hold).await;
        all.change("abc", "abc").await;
        // It closes the list of the hold, and waits for its lease.
        let change = all.try_change("abc", "abc");
        assert!(timeout(Duration::from_secs(1), change).await.is_err());
        let rest = Duration::from_secs(90);
        store.release_after(&hold, None, rest).await.unwrap();
        let left = all.node('a').command(&["PTTL", "a"]).await.unwrap();
        assert!(left.integer() > Some(80_000), "{left:?}");
    })
    .await;
}

#[tokio::test]
async fn a_node_that_lost_its_data_has_no_vote_until_two_changes_later() {
    bounded(async {
        let all = Cluster::of(3).await;
        all.change("abc", "abc").await;
        let one = all.client("abc").await;
        let two = all.client("abc").await;
        // Held at `a` and `b`, while `c` is away.
        all.node('c').pause().await.unwrap();
        let hold = held("a", 1500);
        granted(&one, &hold).await;
        all.node('c').resume().unwrap();
        all.node('b').command(&["FLUSHALL"]).await.unwrap();
        // `b` and `c` know of no hold.
        let refused = two.claim(&held("a", 1000)).await;
        assert!(!matches!(refused, Ok(Claimed::Granted(_))), "{refused:?}");
        // It is found, and opened by the next change.
        assert_eq!(all.change("abc", "abc").await, 1);
        assert_eq!(all.number('b').await, None);
        assert_eq!(all.change("abc", "abc").await, 0);
        assert_eq!(all.number('b').await.as_deref(), Some("3"));
        granted(&two, &held("z", 1000)).await;
        // It counts again: `a` is not needed.
        all.node('a').pause().await.unwrap();
        granted(&two, &held("y", 1000)).await;
        all.node('a').resume().unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_node_that_is_emptied_again_before_it_is_opened_stays_absent() {
    bounded(async {
        let all = Cluster::of(3).await;
        all.change("abc", "abc").await;
        for _ in 0..2 {
            all.node('b').command(&["FLUSHALL"]).await.unwrap();
            assert_eq!(all.change("abc", "abc").await, 1);
        }
        assert_eq!(all.change("abc", "abc").await, 0);
    })
    .await;
}

#[tokio::test]
async fn a_dead_node_is_replaced_by_way_of_the_other_two() {
    bounded(async {
        let all = Cluster::of(4).await;
        all.change("abc", "abc").await;
        let store = of(all.client("abc").await);
        all.node('c').kill().await.unwrap();
        let quick = |list: &str| {
            let addrs = list.chars().map(|name| all.node(name).addr());
            Config::from_url(&url(addrs)).unwrap()
        };
        let guard = store.lock("a").acquire().await.unwrap();
        let change = change_nodes(&quick("abc"), &quick("ab"), drop)
            .await
            .unwrap();
        assert_eq!(change.without_vote, []);
        assert!(guard.is_valid());
        drop(guard.release().await);
        let two = all.client("ab").await;
        change_nodes(&quick("ab"), &quick("abd"), drop)
            .await
            .unwrap();
        let three = all.client("abd").await;
        soon(&three, &held("a", 1000)).await;
        assert!(!is_granted(&two, &held("a", 1000)).await);
        // What comes back with its data is left behind.
        all.node('c').restart_with_data().await.unwrap();
        assert!(Redlock::connect(&all.url("abc")).await.is_err());
    })
    .await;
}

/// A run for the first number stalled before it asked for promises, another one gave the number, and a node lost its data.
#[tokio::test]
async fn a_late_promise_for_the_first_number_gives_an_emptied_node_no_record() {
    bounded(async {
        let all = Cluster::of(3).await;
        all.change("abc", "abc").await;
        all.node('b').command(&["FLUSHALL"]).await.unwrap();
        let script = [BEGINNING, include_str!("../../../src/redlock/list.lua")].concat();
        let late = [
            "EVAL", &script, "2", "{}:rn", "{}:rt", "promise", "1", "a,b,c", "9", "me", "life",
        ];
        let asked = async || match all.node('b').command(&late).await.unwrap() {
            Reply::Array(mut said) => said.remove(0).text().unwrap(),
            other => panic!("{other:?}"),
        };
        assert_eq!(asked().await, "none");
        assert_eq!(all.number('b').await, None);
        // With the text of that run it is asked in time.
        all.node('b')
            .command(&["HSET", "{}:rn", "life", "life"])
            .await
            .unwrap();
        assert_eq!(asked().await, "promised");
    })
    .await;
}

/// A new node was away when its list was opened elsewhere. The next change opens it, since it has the data that it had then.
#[tokio::test]
async fn a_new_node_that_was_not_reached_is_opened_by_the_next_change() {
    bounded(async {
        let all = Cluster::of(4).await;
        all.change("abc", "abc").await;
        all.change("abc", "abcd").await;
        // As if the run had not reached it.
        let blank = all
            .node('d')
            .command(&["HGET", "{}:rn", "fresh"])
            .await
            .unwrap();
        let blank = blank.text().unwrap();
        let (_, blank) = blank.split_once('=').unwrap();
        all.node('d').command(&["DEL", "{}:rn"]).await.unwrap();
        all.node('d')
            .command(&["HSET", "{}:rn", "blank", blank])
            .await
            .unwrap();
        assert_eq!(all.change("abcd", "bcd").await, 0);
        assert_eq!(all.number('d').await.as_deref(), Some("3"));
    })
    .await;
}

#[tokio::test]
async fn what_cannot_be_a_change_is_refused_and_changes_nothing() {
    bounded(async {
        let all = Cluster::of(5).await;
        for (old, new) in [
            ("abc", "abd"),
            ("abc", "abcde"),
            ("abc", "abcd"),
            ("abc", "ab"),
        ] {
            let refused = all.try_change(old, new).await;
            assert_eq!(kind(refused), ErrorKind::Invalid, "{old} {new}");
        }
        all.change("abc", "abc").await;
        for (old, new) in [("abd", "abd"), ("abcd", "abcd"), ("bcd", "cd")] {
            let refused = all.try_change(old, new).await;
            assert_eq!(kind(refused), ErrorKind::Invalid, "{old} {new}");
        }
        // Lists without a number are odd.
        for list in ["de", "cd"] {
            assert!(Redlock::connect(&all.url(list)).await.is_err());
        }
        let fresh = Cluster::of(4).await;
        assert_eq!(
            kind(Redlock::connect(&fresh.url("abcd")).await),
            ErrorKind::Invalid
        );
    })
    .await;
}

/// Somebody starts a program with other nodes, and has not changed the list. It is told which nodes there are.
#[tokio::test]
async fn a_program_with_other_nodes_than_the_list_is_refused() {
    bounded(async {
        let all = Cluster::of(6).await;
        all.change("abc", "abc").await;
        let one = all.client("abc").await;
        granted(&one, &held("a", 60_000)).await;
        let expected: Vec<&str> = "abc".chars().map(|name| all.node(name).addr()).collect();
        for list in ["ade", "abd", "abcd", "abcdf", "acdef"] {
            let refused = Redlock::connect(&all.url(list)).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::OtherStore, "{list}: {refused}");
            let told = refused.to_string();
            assert!(expected.iter().all(|node| told.contains(node)), "{told}");
        }
        assert!(!is_granted(&all.client("abc").await, &held("a", 1000)).await);
    })
    .await;
}

#[tokio::test]
async fn two_operators_open_one_list_for_each_number() {
    bounded(async {
        for _ in 0..6 {
            let all = Cluster::of(5).await;
            all.change("abc", "abc").await;
            let (one, two) =
                tokio::join!(all.try_change("abc", "abcd"), all.try_change("abc", "abce"));
            let opened: BTreeSet<Vec<String>> = [one, two]
                .into_iter()
                .flatten()
                .map(|it| it.nodes)
                .collect();
            assert!(!opened.is_empty());
            let mut lists = BTreeSet::new();
            for name in "abcde".chars() {
                let record = ["HMGET", "{}:rn", "number", "nodes"];
                lists.insert(format!(
                    "{:?}",
                    all.node(name).command(&record).await.unwrap()
                ));
            }
            let second = lists.iter().filter(|record| record.contains("\"2\""));
            assert!(second.count() <= 1, "{lists:?}");
        }
    })
    .await;
}

/// The others may have numbers. If it took part in a first change, it would look as one that was away with its data.
#[tokio::test]
async fn an_emptied_node_gets_no_record_while_the_others_are_silent() {
    bounded(async {
        let all = Cluster::of(3).await;
        for _ in 0..2 {
            all.change("abc", "abc").await;
        }
        all.node('b').command(&["FLUSHALL"]).await.unwrap();
        for name in ['a', 'c'] {
            all.node(name).pause().await.unwrap();
        }
        let addrs = "abc".chars().map(|name| all.node(name).addr());
        let quick = Config::from_url(&format!("{}?timeout=1000", url(addrs))).unwrap();
        let alone = change_nodes(&quick, &quick, drop).await;
        for name in ['a', 'c'] {
            all.node(name).resume().unwrap();
        }
        assert_eq!(kind(alone), ErrorKind::Unavailable);
        assert_eq!(all.number('b').await, None);
        assert_eq!(all.change("abc", "abc").await, 1);
        assert_eq!(all.change("abc", "abc").await, 0);
    })
    .await;
}

/// The first change was not complete at `c`, so it goes on, and `b` has lost its data meanwhile.
#[tokio::test]
async fn the_first_change_does_not_bring_back_a_node_that_lost_its_data_after_it() {
    bounded(async {
        let all = Cluster::of(3).await;
        all.change("abc", "abc").await;
        // As a run leaves it that died between the nodes.
        let nodes = all.nodes_at('a').await;
        all.tell('c', &["DEL", "{}:rn"]).await;
        all.tell('c', &["HSET", "{}:rn", "number", "0", "nodes", &nodes])
            .await;
        let one = all.client("abc").await;
        let two = all.client("abc").await;
        all.node('c').pause().await.unwrap();
        granted(&one, &held("a", 20_000)).await;
        all.node('c').resume().unwrap();
        all.tell('b', &["FLUSHALL"]).await;
        assert_eq!(all.change("abc", "abc").await, 1);
        assert_eq!(all.number('b').await, None);
        assert_eq!(all.number('c').await.as_deref(), Some("1"));
        assert!(!is_granted(&two, &held("a", 1000)).await);
    })
    .await;
}

/// A record that went with the note of a lease would take the number with it.
#[tokio::test]
async fn a_user_with_the_rights_of_a_program_gives_a_number_that_stays() {
    bounded(async {
        let all = Cluster::of(4).await;
        let rights = "on >pw ~* &leasehold:* -@all +hello +client +ping +subscribe +unsubscribe +publish +eval +evalsha +info +config|get \
            +exists +get +set +pexpire +pttl +del +unlink +hset +hget +hmget +hgetall +hdel +zadd +zcard +zscore +zrange +zrevrange \
            +zrangebyscore +zrem +time +rename +zremrangebyscore +pubsub|numsub";
        for node in &all.nodes {
            let words = ["ACL", "SETUSER", "app"].into_iter();
            let words: Vec<&str> = words.chain(rights.split_whitespace()).collect();
            node.command(&words).await.unwrap();
        }
        let url = |list| all.url(list).replace("://", "://app:pw@");
        let store = {
            let url = url("abc");
            connected(|| Redlock::connect(&url)).await
        };
        granted(&store, &held("a", 300)).await;
        for (new, number) in [("abc", "1"), ("abcd", "2")] {
            let config = |list| Config::from_url(&url(list)).unwrap();
            let changed = change_nodes(&config("abc"), &config(new), drop).await.unwrap();
            assert_eq!(changed.without_vote, []);
            for name in new.chars() {
                let left = all.node(name).command(&["PTTL", "{}:rn"]).await.unwrap();
                assert_eq!(left.integer(), Some(-1), "{name}");
                assert_eq!(all.number(name).await.as_deref(), Some(number));
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_node_that_is_another_one_or_another_database_is_no_node_more() {
    bounded(async {
        let all = Cluster::of(3).await;
        all.change("abc", "abc").await;
        let alias = all.node('a').addr().replace("127.0.0.1", "localhost");
        let addrs = "abc".chars().map(|name| all.node(name).addr());
        let twice = format!("{}?timeout=5000", url(addrs.chain([&*alias])));
        let old = all.config("abc");
        let refused = change_nodes(&old, &Config::from_url(&twice).unwrap(), drop).await;
        assert!(
            refused
                .as_ref()
                .is_err_and(|e| e.to_string().contains("same server")),
            "{refused:?}"
        );
        assert_eq!(kind(refused), ErrorKind::Invalid);
        let elsewhere = all.url("abc").replace('?', "/1?");
        let refused = change_nodes(&old, &Config::from_url(&elsewhere).unwrap(), drop).await;
        assert_eq!(kind(refused), ErrorKind::Invalid);
        let alone = Config::new(vec![
            format!("redis://{}", all.node('a').addr())
                .into_connection_info()
                .unwrap(),
        ]);
        assert_eq!(
            kind(change_nodes(&alone, &alone, drop).await),
            ErrorKind::Invalid
        );
        assert_eq!(all.number('a').await.as_deref(), Some("1"));
    })
    .await;
}

#[tokio::test]
async fn a_change_that_is_done_is_repeated_without_a_wait() {
    bounded(async {
        let all = Cluster::of(4).await;
        all.change("abc", "abc").await;
        all.change("abc", "abcd").await;
        // By a program that goes by the list before.
        granted(&all.client("abc").await, &held("a", 60_000)).await;
        let (old, new) = (all.config("abc"), all.config("abcd"));
        let again = change_nodes(&old, &new, |rest| panic!("waits {rest:?}"));
        assert_eq!(again.await.unwrap().number, 2);
    })
    .await;
}

/// Another operator's run died after a majority had closed for it.
#[tokio::test]
async fn who_completes_the_change_of_another_is_told_how_to_open_its_new_node() {
    bounded(async {
        let all = Cluster::of(5).await;
        all.change("abc", "abc").await;
        granted(&all.client("abc").await, &held("a", 1500)).await;
        all.change("abc", "abc").await;
        // It waits for the lease, and dies.
        let waits = all.try_change("abc", "abce");
        timeout(Duration::from_millis(700), waits).await.ok();
        all.node('c').kill().await.unwrap();
        let addrs = |list: &'static str| list.chars().map(|name| all.node(name).addr());
        let quick = |list| Config::from_url(&url(addrs(list))).unwrap();
        let stuck = change_nodes(&quick("abc"), &quick("abcd"), drop)
            .await
            .unwrap_err();
        let mut expected: Vec<&str> = addrs("abce").collect();
        expected.sort_unstable();
        assert!(
            stuck
                .to_string()
                .contains(&format!("repeat the change, to {}", expected.join(","))),
            "{stuck}"
        );
        assert!(
            change_nodes(&quick("abc"), &quick("abce"), drop)
                .await
                .is_ok()
        );
    })
    .await;
}

/// The nodes that know the list in use do not answer, and one that was left behind does.
#[tokio::test]
async fn a_node_that_was_left_behind_does_not_say_which_list_is_in_use() {
    bounded(async {
        let all = Cluster::of(5).await;
        all.change("abc", "abc").await;
        let config = |list: &str| {
            let addrs = list.chars().map(|name| all.node(name).addr());
            Config::from_url(&url(addrs)).unwrap()
        };
        all.node('c').pause().await.unwrap();
        let changed = change_nodes(&config("abc"), &config("abcd"), drop)
            .await
            .unwrap();
        assert_eq!(changed.without_vote.len(), 1);
        all.node('c').resume().unwrap();
        for name in ['a', 'b', 'd'] {
            all.node(name).pause().await.unwrap();
        }
        let stuck = change_nodes(&config("abcd"), &config("abcde"), drop).await;
        for name in ['a', 'b', 'd'] {
            all.node(name).resume().unwrap();
        }
        assert_eq!(kind(stuck), ErrorKind::Unavailable);
        assert_eq!(all.change("abcd", "abcde").await, 0);
    })
    .await;
}

/// `ab` could not be opened, and `abc` would not be the newest list any more.
#[tokio::test]
async fn a_list_that_cannot_be_opened_is_not_begun() {
    bounded(async {
        let all = Cluster::of(3).await;
        all.change("abc", "abc").await;
        all.tell('b', &["FLUSHALL"]).await;
        let refused = all.try_change("abc", "ab").await.unwrap_err();
        assert!(
            refused.to_string().contains("bring others back"),
            "{refused}"
        );
        assert_eq!(all.change("abc", "abc").await, 1);
        assert_eq!(all.change("abc", "abc").await, 0);
        assert_eq!(all.change("abc", "ab").await, 0);
    })
    .await;
}

/// Without its reason a node that cannot read its record looks as one that has none.
#[tokio::test]
async fn why_a_node_cannot_read_its_record_is_said() {
    bounded(async {
        let all = Cluster::of(3).await;
        all.change("abc", "abc").await;
        let store = all.client("abc").await;
        for name in "abc".chars() {
            all.tell(name, &["SET", "{}:rn", "junk"]).await;
        }
        let refused = store.claim(&held("a", 1000)).await.map(drop).unwrap_err();
        let text = refused.to_string();
        assert_eq!(refused.kind(), ErrorKind::Corrupt, "{text}");
        let reason = "holds something that is no lock";
        assert!(text.contains(reason), "{text}");
        // Who starts now is warned of each node.
        let warned = async |url: String, reason: &str| {
            let store = connected(|| Redlock::connect(&url)).await;
            let said = store.guarantees();
            let of_lists = said
                .warnings()
                .iter()
                .filter(|text| text.contains("the list of nodes") && text.contains(reason));
            assert_eq!(of_lists.count(), 3, "{:?}", said.warnings());
        };
        warned(all.url("abc"), reason).await;
        let rights = "on >pw ~a ~{a}:* ~{}:rt ~{}:ro ~{}:rb ~{}:store ~{}:- &leasehold:* +@all";
        for node in &all.nodes {
            let words = ["ACL", "SETUSER", "app"].into_iter();
            let words: Vec<&str> = words.chain(rights.split(' ')).collect();
            node.command(&words).await.unwrap();
        }
        let url = all.url("abc").replace("://", "://app:pw@");
        warned(url, "lacks a right").await;
    })
    .await;
}

#[tokio::test]
async fn a_node_that_is_silent_at_the_start_is_in_the_warnings() {
    bounded(async {
        let all = Cluster::of(3).await;
        all.node('c').kill().await.unwrap();
        let store = all.client("abc").await;
        let addr = all.node('c').addr();
        let said = store.guarantees();
        let about = said.warnings().iter().filter(|text| text.contains(addr));
        let about: Vec<&String> = about.collect();
        assert_eq!(about.len(), 2, "{about:?}");
        for words in ["its settings are not known", "the list of nodes"] {
            assert!(about.iter().any(|text| text.contains(words)), "{about:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn who_changes_a_list_with_a_wrong_password_is_denied() {
    for is_numbered in [false, true] {
        bounded(async {
            let all = Cluster::of(3).await;
            if is_numbered {
                all.change("abc", "abc").await;
            }
            for name in ['b', 'c'] {
                all.tell(name, &["CONFIG", "SET", "requirepass", "pw"])
                    .await;
            }
            let denied = all.try_change("abc", "abc").await.unwrap_err();
            assert_eq!(denied.kind(), ErrorKind::Denied, "{denied}");
            assert!(denied.to_string().contains("password"), "{denied}");
        })
        .await;
    }
}

#[tokio::test]
async fn why_a_node_stays_behind_is_said() {
    bounded(async {
        let all = Cluster::of(3).await;
        for _ in 0..2 {
            all.change("abc", "abc").await;
        }
        all.tell('c', &["HSET", "{}:rn", "number", "1"]).await;
        let short_of_replicas = ["CONFIG", "SET", "min-replicas-to-write", "1"];
        all.tell('b', &short_of_replicas).await;
        all.tell('c', &["CONFIG", "SET", "maxmemory", "1"]).await;
        let refused = all.try_change("abc", "abc").await.unwrap_err();
        let text = refused.to_string();
        for words in ["1 of 3 nodes", "left behind", "out of memory"] {
            assert!(text.contains(words), "{text}");
        }
    })
    .await;
}

/// A program that runs through changes: it claims, holds for a moment, dies now and then, and begins anew with the list in use when
/// it is told that its own is out of date.
struct Fleet {
    all: Cluster,
    /// How long its requests wait for an answer, in milliseconds.
    timeout: u32,
    list: std::sync::Mutex<String>,
    ends: AtomicBool,
    grants: AtomicUsize,
    holds: std::sync::Mutex<Vec<(Moment, Moment, u64)>>,
}

impl Fleet {
    fn new(all: Cluster, timeout: u32, list: &str) -> Arc<Fleet> {
        Arc::new(Fleet {
            all,
            timeout,
            list: std::sync::Mutex::new(list.into()),
            ends: AtomicBool::new(false),
            grants: AtomicUsize::new(0),
            holds: std::sync::Mutex::default(),
        })
    }

    fn start(self: &Arc<Fleet>, programs: usize) -> JoinSet<()> {
        (0..programs).map(|_| self.clone().program()).collect()
    }

    /// Waits until the programs were granted this many locks more.
    async fn goes_on(&self, grants: usize) {
        let before = self.grants.load(Ordering::Relaxed);
        until(|| async { self.grants.load(Ordering::Relaxed) > before + grants }).await;
    }

    /// Ends the programs, and fails if two held at once or a token fell.
    async fn judge(&self, programs: JoinSet<()>) {
        self.ends.store(true, Ordering::Relaxed);
        programs.join_all().await;
        let mut holds = std::mem::take(&mut *self.holds.lock().unwrap());
        holds.sort();
        for pair in holds.windows(2) {
            assert!(pair[0].1 <= pair[1].0, "two held: {pair:?}");
            assert!(pair[0].2 < pair[1].2, "a token fell: {pair:?}");
        }
    }

    async fn program(self: Arc<Fleet>) {
        while !self.ends.load(Ordering::Relaxed) {
            let list = self.list.lock().unwrap().clone();
            let Ok(store) = Redlock::connect(&self.all.patient_url(&list, self.timeout)).await
            else {
                sleep(20).await;
                continue;
            };
            loop {
                if self.ends.load(Ordering::Relaxed) || !self.turn(&store).await {
                    break;
                }
            }
        }
    }

    /// Returns whether the program may go on with this store.
    async fn turn(&self, store: &Redlock) -> bool {
        let claim = held("contended", 400);
        let sent = Moment::now();
        match store.claim(&claim).await {
            Ok(Claimed::Granted(grant)) => {
                let began = Moment::now();
                sleep(fastrand::u64(..12)).await;
                let dies = fastrand::u8(..20) == 0;
                let end = grant.validity.until(sent);
                let until = if dies { end } else { end.min(Moment::now()) };
                // A grant whose answer took longer than its lease is no hold.
                if began < until {
                    let hold = (began, until, grant.token.get());
                    self.holds.lock().unwrap().push(hold);
                    self.grants.fetch_add(1, Ordering::Relaxed);
                }
                if !dies {
                    let _ = store.release(&claim, None).await;
                }
                // A program that died begins anew.
                !dies
            }
            Ok(_) => {
                sleep(fastrand::u64(5..30)).await;
                true
            }
            Err(e) => e.kind() != ErrorKind::OtherStore,
        }
    }
}

/// The list grows, shrinks and has a node replaced, each step by runs of the operator that die at first.
#[tokio::test]
async fn twenty_programs_never_overlap_while_the_list_changes() {
    bounded(async {
        let fleet = Fleet::new(Cluster::of(6).await, 2000, "abc");
        fleet.all.change("abc", "abc").await;
        let programs = fleet.start(20);
        let mut old = "abc";
        for new in ["abcd", "abcde", "abcd", "bcd", "bcdf", "cdf"] {
            // The run dies wherever it is.
            for _ in 0..3 {
                let dies = Duration::from_millis(fastrand::u64(..60));
                let _ = timeout(dies, fleet.all.try_change(old, new)).await;
            }
            assert_eq!(fleet.all.change(old, new).await, 0);
            *fleet.list.lock().unwrap() = new.into();
            // Some programs go on with the old list for a while.
            fleet.goes_on(40).await;
            old = new;
        }
        fleet.judge(programs).await;
    })
    .await;
}

/// A fault of one node as it gets a write of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// It stops before the write, and executes it after the run of the operator has ended.
    Stopped,
    /// It is killed before the write, and comes back with its data.
    Killed,
    /// It has lost its data when the write comes.
    Emptied,
    /// It executes the write, and loses its data before anybody knows.
    EmptiedAfter,
    /// It executes the write, and the answer is lost.
    AnswerLost,
    /// It is cut off before the write, and comes back after the first repetition.
    LeftBehind,
    /// The write comes when the operator has repeated all that was to be repeated.
    Late,
}

impl Fault {
    const ALL: [Fault; 7] = [
        Fault::Stopped,
        Fault::Killed,
        Fault::Emptied,
        Fault::EmptiedAfter,
        Fault::AnswerLost,
        Fault::LeftBehind,
        Fault::Late,
    ];

    /// Runs the change, in which this node meets the fault at this write. Returns whether the write came.
    async fn during(self, change: impl Future, node: &Redis, way: &Proxy, write: &str) -> bool {
        let word = format!("\r\n{write}\r\n");
        let trap = match self {
            Fault::EmptiedAfter | Fault::AnswerLost => way.hold_reply_matching(word),
            _ => way.hold_matching(word),
        };
        let harm = async {
            trap.sprung().await;
            match self {
                Fault::Stopped => node.pause().await.unwrap(),
                Fault::Killed => node.kill().await.unwrap(),
                Fault::Emptied | Fault::EmptiedAfter => {
                    node.command(&["FLUSHALL"]).await.unwrap();
                    way.deliver_held();
                }
                Fault::AnswerLost | Fault::LeftBehind => way.cut().await,
                Fault::Late => {}
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            _ = change => {}
            () = harm => {}
        }
        match self {
            Fault::Stopped => {
                way.deliver_held();
                node.resume().unwrap();
            }
            Fault::Killed => node.start_again().await.unwrap(),
            Fault::AnswerLost => way.heal().await,
            _ => {}
        }
        trap.has_sprung()
    }
}

/// The list grows and shrinks again and again, and each time one node meets one fault at one write.
/// The operator repeats the change until all nodes have a vote, while programs run. Each fault comes
/// once, at a random write; with `LEASEHOLD_WHOLE`, as `cargo xtask test --all` sets it, at each.
#[tokio::test(flavor = "multi_thread")]
async fn a_fault_of_a_node_at_any_write_of_a_change_makes_no_two_holders() {
    within(600, async {
        let (all, ways) = Cluster::behind_proxies(4).await;
        let fleet = Fleet::new(all, 300, "abc");
        let all = &fleet.all;
        all.change("abc", "abc").await;
        let programs = fleet.start(4);
        let writes = ["promise", "close", "open"].into_iter();
        let places = writes.flat_map(|write| "abcd".chars().map(move |name| (write, name)));
        let places: Vec<(&str, char)> = places.collect();
        let is_whole = std::env::var_os("LEASEHOLD_WHOLE").is_some();
        let cells = Fault::ALL.into_iter().flat_map(|fault| {
            let chosen = match is_whole {
                true => places.clone(),
                false => vec![places[fastrand::usize(..places.len())]],
            };
            chosen
                .into_iter()
                .map(move |(write, name)| (fault, write, name))
        });
        for (fault, write, name) in cells {
            for (old, new) in [("abc", "abcd"), ("abcd", "abc")] {
                let cell = format!("{fault:?} {name} {write}, {old} to {new}");
                let node = all.node(name);
                let way = &ways[Cluster::place(name)];
                let [from, to] =
                    [old, new].map(|list| Config::from_url(&all.patient_url(list, 300)).unwrap());
                let change = change_nodes(&from, &to, drop);
                let came = fault.during(change, node, way, write).await;
                // A node that is added makes no promise.
                assert_eq!(
                    came,
                    old.contains(name) || new.contains(name) && write == "open",
                    "{cell}"
                );
                let mut said = Vec::new();
                for (from, to) in [(old, new), (old, new), (new, new), (new, new), (new, new)] {
                    let changed = all.try_change(from, to).await;
                    *fleet.list.lock().unwrap() = new.into();
                    if fault == Fault::LeftBehind {
                        way.heal().await;
                    }
                    let has_all = changed.as_ref().is_ok_and(|it| it.without_vote.is_empty());
                    said.push(changed);
                    if from == to && has_all {
                        break;
                    }
                }
                let ends = said.last().unwrap().as_ref();
                assert!(
                    ends.is_ok_and(|it| it.without_vote.is_empty()),
                    "{cell}: {said:?}"
                );
                way.disarm();
                fleet.goes_on(5).await;
            }
        }
        fleet.judge(programs).await;
    })
    .await;
}

/// A list of two is good while it has a number, and nodes that do not answer may know it.
#[tokio::test]
async fn a_list_that_no_node_tells_is_not_refused_for_its_length() {
    bounded(async {
        let all = nodes(3).await;
        let mut ways = Vec::new();
        for node in &all {
            ways.push(Proxy::to(node.addr()).await.unwrap());
        }
        let by = |n: usize, timeout: u32| {
            let addrs = url(ways[..n].iter().map(Proxy::addr));
            format!("{addrs}?timeout={timeout}")
        };
        let config = |n| Config::from_url(&by(n, 5000)).unwrap();
        for (old, new) in [(3, 3), (3, 2)] {
            let changed = change_nodes(&config(old), &config(new), drop).await;
            assert_eq!(changed.unwrap().nodes.len(), new);
        }
        let question = "\r\nHMGET\r\n";
        let traps = [0, 1].map(|nth: usize| ways[nth].hold_matching(question));
        let error = Redlock::connect(&by(2, 300)).await.unwrap_err();
        assert!(
            traps.iter().all(leasehold_testbed::Trap::has_sprung),
            "{error:?}"
        );
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
        assert!(error.to_string().contains(ways[1].addr()), "{error}");
        ways.iter().for_each(Proxy::disarm);
        let patient = by(2, 5000);
        let store = connected(|| Redlock::connect(&patient)).await;
        granted(&store, &held("a", 1000)).await;
    })
    .await;
}
