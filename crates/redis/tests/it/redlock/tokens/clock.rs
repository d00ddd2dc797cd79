//! The nodes' own script by a clock of the test's, which goes on and steps back while keys expire.

use std::collections::BTreeMap;

use leasehold_testbed::Redis;

use crate::redlock::common::{BEGINNING, bounded, eval, keys_of};

const SECOND: u64 = 1_000_000;
/// How far a clock may step back, but for what the test itself takes to look at keys.
const BACK: u64 = 7140 * SECOND;
const STEPS: usize = 1500;

/// One node. Its keys do not expire by themselves: until when they may be there stands in the hashes, and here for the bound.
struct World {
    node: Redis,
    script: String,
    random: fastrand::Rng,
    clock: u64,
    latest: u64,
    bound_ends: u64,
    /// The greatest token that was given out of each name.
    given: BTreeMap<&'static str, u64>,
}

impl World {
    async fn tell(&self, words: &[&str]) -> String {
        let reply = self.node.command(words).await.unwrap();
        reply
            .text()
            .or_else(|| reply.integer().map(|n| n.to_string()))
            .unwrap_or_default()
    }

    /// Runs a verb for this claim of a name.
    async fn run(&self, verb: &str, name: &str, id: &str, turns: &str, what: &[&str]) -> String {
        let keys = keys_of(name);
        let args = [verb, id, "60000", "x", turns, "nobody", "", "1", "0"];
        let words = eval(&self.script, &keys, &[&args[..], what].concat());
        self.tell(&words).await
    }

    /// Deletes the keys that have expired: surely, or perhaps.
    async fn expire(&mut self, surely: bool) {
        for key in ["{}:rt", "{}:ro", "{}:rb"] {
            let ends = match key {
                "{}:rb" => self.bound_ends,
                _ => self
                    .tell(&["HGET", key, "ends"])
                    .await
                    .parse()
                    .unwrap_or(u64::MAX),
            };
            if ends <= self.clock && (surely || self.random.bool()) {
                self.tell(&["DEL", key]).await;
            }
        }
    }

    /// What has been given a time to live lives by the test's clock from now on.
    async fn adopt(&mut self) {
        for key in ["{}:rt", "{}:rb"] {
            let left: i64 = self.tell(&["PTTL", key]).await.parse().unwrap();
            let Ok(left) = u64::try_from(left) else {
                continue;
            };
            let ends = self.clock + left * 1000;
            if key == "{}:rb" {
                self.bound_ends = ends;
            } else {
                self.tell(&["HSET", key, "ends", &ends.to_string()]).await;
            }
            self.tell(&["PERSIST", key]).await;
        }
    }

    /// Time passes, and perhaps the clock steps back.
    async fn pass(&mut self) {
        let most = [SECOND / 100, SECOND, 10 * SECOND, 3600 * SECOND][self.random.usize(..4)];
        self.clock += self.random.u64(..most);
        self.latest = self.latest.max(self.clock);
        self.expire(false).await;
        if self.random.u8(..4) == 0 {
            let most = [SECOND, 10 * SECOND, BACK][self.random.usize(..3)];
            let least = (self.latest - BACK).max(self.clock.saturating_sub(most));
            self.clock = self.random.u64(least..=self.clock.max(least));
        }
        self.expire(true).await;
        self.tell(&["SET", "clock", &self.clock.to_string()]).await;
    }

    /// A claim, or a token that another node has given and that is written back.
    async fn claim(&mut self) {
        let name = self.random.choice(["a", "b", "c", "d"]).unwrap();
        let before = self.given.get(name).copied().unwrap_or_default();
        let (id, turns) = (
            format!("{:032x}", self.random.u128(..)),
            if self.random.bool() { "1" } else { "64" },
        );
        let token = if self.random.u8(..8) == 0 {
            let token = self.clock.max(before + 1) + self.random.u64(..5 * SECOND);
            assert_eq!(
                self.run("renew", name, &id, turns, &[&token.to_string(), "top"])
                    .await,
                "topped"
            );
            token
        } else {
            let proposal =
                [0, self.clock + SECOND / 10, self.clock + 100 * SECOND][self.random.usize(..3)];
            let answer = self
                .run("claim", name, &id, turns, &[&proposal.to_string(), "0"])
                .await;
            let token = answer.rsplit(' ').next().unwrap().parse().unwrap();
            assert!(
                token > before,
                "{answer} at {} after {before}, of {name}",
                self.clock
            );
            token
        };
        self.given
            .insert(name, token + turns.parse::<u64>().unwrap() - 1);
        self.adopt().await;
        assert_eq!(self.run("release", name, &id, turns, &["0"]).await, "ok");
    }
}

#[tokio::test]
async fn tokens_of_the_script_rise_however_its_clock_steps() {
    bounded(async {
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let script = [BEGINNING, include_str!("../../../../src/redlock/node.lua")].concat();
        let script = script.replace(
            "time[1] * 1000000 + time[2]",
            "tonumber(redis.call('GET', 'clock'))",
        );
        let clock = 1_700_000_000 * SECOND;
        let (node, random) = (
            Redis::start().await.unwrap(),
            fastrand::Rng::with_seed(seed),
        );
        let given = BTreeMap::new();
        let mut world = World {
            node,
            script,
            random,
            clock,
            latest: clock,
            bound_ends: u64::MAX,
            given,
        };
        for _ in 0..STEPS {
            world.pass().await;
            world.claim().await;
        }
    })
    .await;
}
