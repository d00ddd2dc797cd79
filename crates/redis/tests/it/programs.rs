//! Random programs against a short sequential specification: claims of all modes and policies, late requests of ids long gone,
//! releases, renewals, evictions, ends of leases, other tools' `SET` and `DEL`, and the loss of the fence. After each step the
//! server's own keys have to say what the specification says.

mod spec;

use std::collections::BTreeMap;

use crate::support::*;
use leasehold_core::backend::{Backend, Claim, Claimed, Mode, Renewal, WaitPolicy};
use leasehold_core::{ErrorKind, FencingToken, Loss};
use leasehold_redis::Redis;
use leasehold_testbed::Reply;
use spec::{Answer, Spec};

const STEPS: usize = 80;
const NAME: &str = "x";

/// One program under way.
struct Play<'a> {
    server: &'a Server,
    /// The second one observes the name, in half of the programs.
    stores: &'a [Redis; 2],
    random: fastrand::Rng,
    claims: Vec<Claim>,
    spec: Spec,
    /// The token of each claim that holds, and the greatest that was given out.
    tokens: BTreeMap<usize, FencingToken>,
    /// The label that each claim said last, of those that the store keeps.
    labels: BTreeMap<usize, String>,
    greatest: u64,
    done: Vec<String>,
}

impl Play<'_> {
    /// A claim of before, or a new one.
    fn claim(&mut self) -> usize {
        if self.claims.is_empty() || self.random.u8(..5) < 2 {
            let modes = [
                Mode::Exclusive,
                Mode::Exclusive,
                Mode::Exclusive,
                SHARED,
                permits(1, 3),
                permits(2, 3),
                permits(1, 2),
            ];
            let mode = *self.random.choice(&modes).unwrap();
            let label = self.claims.len().to_string();
            self.claims
                .push(Claim::new(NAME, mode, WaitPolicy::Fair, TTL * 6, &label));
        }
        self.known().unwrap()
    }

    /// A claim of before; rather one of the latest.
    fn known(&mut self) -> Option<usize> {
        let from = self
            .claims
            .len()
            .saturating_sub(if self.random.u8(..8) == 0 { 1000 } else { 6 });
        (from < self.claims.len()).then(|| self.random.usize(from..self.claims.len()))
    }

    async fn step(&mut self) {
        let store = &self.stores[self.random.usize(..2)];
        let what = self.random.u8(..22);
        let known = self.known();
        match (what, known) {
            (0..=8, _) => self.claims_one(store).await,
            (9..=12, Some(at)) => {
                self.done.push(format!("{at} releases"));
                store.release(&self.claims[at], None).await.unwrap();
                self.spec.release(at);
            }
            (13, Some(at)) => self.renews(store, at).await,
            (14, Some(at)) => self.is_evicted(store, at).await,
            (15, _) => {
                self.done.push("another tool sets".into());
                let set = text(self.server, &["SET", NAME, "theirs", "NX", "PX", "60000"]).await;
                assert_eq!(set.is_some(), self.spec.set(), "{:#?}", self.done);
            }
            (16, _) => {
                self.done.push("the key is deleted".into());
                delete(self.server, NAME).await;
                self.spec.delete();
            }
            (17, _) => {
                self.done.push("the fence is lost".into());
                delete(self.server, "{}:f").await;
            }
            (18, Some(at)) => {
                self.done.push(format!("the lease of {at} ends"));
                self.end(at).await;
                self.spec.end(at);
            }
            (19, Some(at)) => {
                self.done.push(format!("{at} ends by itself"));
                store
                    .release_after(&self.claims[at], None, TTL * 6)
                    .await
                    .unwrap();
                self.spec.release_after(at);
            }
            (20, _)
                if text(self.server, &["GET", NAME])
                    .await
                    .is_some_and(|lock| lock.starts_with('=')) =>
            {
                // With the last of them, and before anybody asks.
                self.done.push("the leases of all sharers end".into());
                for key in [NAME, "{x}:s", "{x}:r"] {
                    delete(self.server, key).await;
                }
                self.spec.delete();
            }
            _ => {
                self.done.push("a look".into());
                store.inspect(&NAME.into()).await.unwrap();
                self.spec.settle();
            }
        }
        self.check().await;
    }

    async fn claims_one(&mut self, store: &Redis) {
        let at = self.claim();
        let policies = [
            WaitPolicy::Fair,
            WaitPolicy::Fair,
            WaitPolicy::Fast,
            WaitPolicy::Try,
        ];
        let mut claim = self.claims[at].clone();
        claim.policy = *self.random.choice(&policies).unwrap();
        if self.random.u8(..6) == 0 {
            claim.mode = SHARED;
        }
        if self.random.bool() {
            claim.label = format!("{at}/{}", self.done.len()).into();
        }
        self.done.push(format!(
            "{at} claims {:?} {:?}, {}",
            claim.mode, claim.policy, claim.label
        ));
        let said = match store.claim(&claim).await {
            Ok(Claimed::Granted(grant)) => {
                self.tokens.entry(at).or_insert(grant.token);
                assert_eq!(self.tokens[&at], grant.token, "{:#?}", self.done);
                Answer::Granted
            }
            Ok(Claimed::Waiting(_)) => Answer::Waiting,
            Ok(Claimed::Busy(_)) => Answer::Busy,
            Ok(Claimed::Done(done)) => panic!("{done:?}: {:#?}", self.done),
            Err(e) if e.kind() == ErrorKind::Invalid => Answer::Differ,
            Err(e) => panic!("{e}: {:#?}", self.done),
        };
        let expected = self
            .spec
            .claim(at, claim.mode, claim.policy != WaitPolicy::Try);
        assert_eq!(said, expected, "{:#?}", self.done);
        if matches!(said, Answer::Granted | Answer::Waiting) {
            self.labels.insert(at, claim.label.to_string());
        }
    }

    async fn renews(&mut self, store: &Redis, at: usize) {
        self.done.push(format!("{at} renews"));
        let token = self.tokens.get(&at).copied();
        let said = match renewed(store, &self.claims[at], token).await {
            // What it was before.
            Renewal::Renewed(_) if token.is_some() => Answer::Granted,
            Renewal::Renewed(_) => Answer::Waiting,
            Renewal::Granted(_) => Answer::Granted,
            Renewal::Lost(Loss::Gone) => Answer::Busy,
            other => panic!("{other:?}: {:#?}", self.done),
        };
        assert_eq!(said, self.spec.renew(at), "{:#?}", self.done);
    }

    async fn is_evicted(&mut self, store: &Redis, at: usize) {
        let Some(token) = self.tokens.get(&at).copied() else {
            return;
        };
        self.done.push(format!("{at} is evicted"));
        let ended = store.evict(&NAME.into(), token).await.unwrap();
        assert_eq!(ended, self.spec.evict(at), "{:#?}", self.done);
    }

    /// The server's clock is not ours to turn, so what has ended is made to look so.
    async fn end(&self, at: usize) {
        let (claim, id) = (&self.claims[at], self.claims[at].id.to_string());
        if let Some((ticket, entry)) = place(self.server, claim).await {
            let (_, record) = entry.split_once(' ').unwrap();
            self.server
                .command(&["HSET", "{x}:l", &ticket, &format!("1 {record}")])
                .await
                .unwrap();
        } else if text(self.server, &["GET", NAME])
            .await
            .is_some_and(|lock| lock[1..].starts_with(&id))
        {
            delete(self.server, NAME).await;
        } else {
            self.server
                .command(&["ZADD", "{x}:s", "XX", "1", &id])
                .await
                .unwrap();
        }
    }

    /// What the keys say is what the specification says.
    async fn check(&mut self) {
        let lock = text(self.server, &["GET", NAME]).await.unwrap_or_default();
        let mut holders = match lock.chars().next() {
            Some('-' | '+' | '*' | '.') => vec![held(&lock)],
            Some('=') => self.sharers().await,
            _ => Vec::new(),
        };
        holders.sort_by_key(|(token, ..)| *token);
        let holding: Vec<usize> = holders.iter().map(|(_, _, label)| self.at(label)).collect();
        assert_eq!(holding, self.spec.holders(), "{lock}: {:#?}", self.done);
        assert_eq!(lock == "theirs", self.spec.foreign, "{:#?}", self.done);
        let live = self.spec.live_holders();
        self.tokens.retain(|at, _| live.contains(at));
        let holders = holders
            .into_iter()
            .map(|(token, turns, label)| (token, turns, self.at(&label)));
        for (token, turns, at) in holders
            .collect::<Vec<_>>()
            .into_iter()
            .filter(|(_, _, at)| live.contains(at))
        {
            let known = self.tokens.insert(at, FencingToken::new(token));
            // Answered already, and not judged yet.
            if known.is_none_or(|known| known.get() > self.greatest) {
                assert!(
                    token > self.greatest,
                    "{token} after {}: {:#?}",
                    self.greatest,
                    self.done
                );
                self.greatest = token + turns - 1;
            }
            assert!(
                known.is_none_or(|known| known.get() == token),
                "another token: {:#?}",
                self.done
            );
        }
        let line = pairs(self.server, "{x}:l").await;
        let mut places: Vec<(u64, &str)> = line
            .iter()
            .filter(|(field, _)| field.len() < 20)
            .filter_map(|(field, entry)| Some((field.parse().ok()?, entry.split_once(' ')?.1)))
            .collect();
        places.sort_unstable();
        let live = |(ticket, _): &&(u64, &str)| !line[&ticket.to_string()].starts_with("1 ");
        let waiting: Vec<usize> = places
            .iter()
            .filter(live)
            .map(|(_, record)| self.at(&held(record).2))
            .collect();
        assert_eq!(waiting, self.spec.waiters(), "{:#?}", self.done);
        assert_eq!(
            in_line(self.server, NAME).await as usize,
            places.len(),
            "{line:?} {:#?}",
            self.done
        );
        assert!(
            !lock.starts_with('-') || places.is_empty(),
            "the flag says that there is no waiter: {:#?}",
            self.done
        );
        assert_eq!(
            line.is_empty(),
            places.is_empty(),
            "an empty queue stays: {line:?} {:#?}",
            self.done
        );
        // Nothing but two fields for each place, and the numbers.
        let numbers = line
            .keys()
            .filter(|field| field.len() == 1 && !field.as_bytes()[0].is_ascii_digit())
            .count();
        assert_eq!(
            line.len(),
            numbers + 2 * places.len(),
            "{line:?} {:#?}",
            self.done
        );
    }

    /// The claim that has this label, which must be the one that it said last.
    fn at(&self, label: &str) -> usize {
        let at = label.split('/').next().unwrap().parse().unwrap();
        assert_eq!(self.labels[&at], label, "an older label: {:#?}", self.done);
        at
    }

    /// The sharers, dead or alive.
    async fn sharers(&self) -> Vec<(u64, u64, String)> {
        let records = pairs(self.server, "{x}:r").await;
        assert_eq!(
            number(self.server, &["ZCARD", "{x}:s"]).await as usize,
            records.len(),
            "{:#?}",
            self.done
        );
        records.values().map(|record| held(record)).collect()
    }
}

/// Token, turns and label of a record.
fn held(record: &str) -> (u64, u64, String) {
    let fields: Vec<&str> = record.splitn(11, ' ').collect();
    (
        fields[1].parse().unwrap(),
        fields[6].parse().unwrap(),
        fields[10].to_owned(),
    )
}

async fn delete(server: &Server, key: &str) {
    server.command(&["DEL", key]).await.unwrap();
}

async fn pairs(server: &Server, key: &str) -> BTreeMap<String, String> {
    let Reply::Array(all) = server.command(&["HGETALL", key]).await.unwrap() else {
        panic!("no hash")
    };
    all.chunks(2)
        .map(|pair| (pair[0].text().unwrap(), pair[1].text().unwrap()))
        .collect()
}

async fn programs(seeds: std::ops::Range<u64>) {
    let server = server().await;
    let stores = [client(&server).await, client(&server).await];
    let (mut grants, mut steps) = (0, 0);
    for seed in seeds {
        let observation = (seed % 2 == 0).then(|| stores[1].observe(&NAME.into()));
        let mut play = Play {
            server: &server,
            stores: &stores,
            random: fastrand::Rng::with_seed(seed),
            claims: Vec::new(),
            spec: Spec::default(),
            tokens: BTreeMap::new(),
            labels: BTreeMap::new(),
            greatest: 0,
            done: vec![format!("seed {seed}")],
        };
        for _ in 0..STEPS {
            let before = play.greatest;
            play.step().await;
            grants += usize::from(play.greatest > before);
            steps += 1;
        }
        drop(observation);
        server.command(&["FLUSHALL"]).await.unwrap();
    }
    println!("{steps} steps, at least {grants} grants");
    assert!(grants > steps / 20, "only {grants} grants");
}

#[tokio::test]
async fn random_programs_do_what_the_specification_says() {
    within(300, programs(0..150)).await;
}

/// `LEASEHOLD_CAMPAIGN=1 cargo test --release -p leasehold-redis --test it programs::thousands -- --nocapture`
#[tokio::test]
async fn thousands_of_programs_in_a_campaign() {
    if std::env::var_os("LEASEHOLD_CAMPAIGN").is_some() {
        within(3600, programs(1000..6000)).await;
    }
}
