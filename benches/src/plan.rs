//! How much is measured, and of what.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::servers::Store;
use crate::subject::Result;

pub const USAGE: &str = "usage: cargo xtask bench [--store STORE]… [--row ROW]… [--quick] [--peers] [--rounds N] [--beside N] \
     [--out NAME], or cargo xtask bench --table NAME=FILE[,FILE]…, or cargo xtask bench --docs [--quick | NAME=FILE[,FILE]…]";

/// The rows of PostgreSQL in a short run that does not ask for it, or for rows.
const POSTGRES_BRIEFLY: [&str; 2] = ["alone", "names"];

#[derive(Clone, Default, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// Three minutes, with short windows and small crowds, and of PostgreSQL a few rows.
    pub quick: bool,
    /// Other crates, too.
    pub peers: bool,
    /// Only these; all, if there is none.
    pub stores: Vec<Store>,
    pub rows: Vec<String>,
    /// In place of the usual number.
    pub rounds: Option<usize>,
    /// So many busy loops run meanwhile.
    pub beside: usize,
    /// What the files are called that it writes.
    pub out: Option<String>,
}

impl Plan {
    pub fn parse(words: impl IntoIterator<Item = String>) -> Result<Plan> {
        let (mut plan, mut words) = (Plan::default(), words.into_iter());
        while let Some(word) = words.next() {
            match (word.as_str(), &mut words) {
                ("--quick", _) => plan.quick = true,
                ("--peers", _) => plan.peers = true,
                ("--store", words) => {
                    let name = words.next().ok_or(USAGE)?;
                    let store = Store::ALL
                        .into_iter()
                        .find(|store| store.to_string() == name);
                    plan.stores
                        .push(store.ok_or_else(|| format!("no such store: {name}"))?);
                }
                ("--rounds", words) => plan.rounds = Some(words.next().ok_or(USAGE)?.parse()?),
                ("--beside", words) => plan.beside = words.next().ok_or(USAGE)?.parse()?,
                ("--out", words) => plan.out = Some(words.next().ok_or(USAGE)?),
                ("--row", words) => plan.rows.push(words.next().ok_or(USAGE)?),
                _ => return Err(format!("{word}? {USAGE}").into()),
            }
        }
        if plan.peers && cfg!(not(feature = "peers")) {
            return Err("the peers are not in this build: it needs --features peers".into());
        }
        Ok(plan)
    }

    pub fn wants(&self, row: &str, store: Store) -> bool {
        let named = self.rows.is_empty() || self.rows.iter().any(|wanted| wanted == row);
        // All its rows take a quarter of the time.
        let few = self.quick
            && self.rows.is_empty()
            && store == Store::Postgres
            && !POSTGRES_BRIEFLY.contains(&row);
        named
            && if self.stores.is_empty() {
                !few
            } else {
                self.stores.contains(&store)
            }
    }

    pub fn rounds(&self) -> usize {
        self.rounds.unwrap_or(if self.quick { 5 } else { 7 })
    }

    /// Of the files that it writes.
    pub fn name(&self) -> &str {
        self.out.as_deref().unwrap_or("bench")
    }

    /// Where one takes long.
    pub fn few_rounds(&self) -> usize {
        self.rounds.unwrap_or(5)
    }

    /// A round that takes longer has failed.
    pub fn round_limit(&self) -> Duration {
        Duration::from_secs(if self.quick { 60 } else { 300 })
    }

    /// A row that has not begun by then is not measured any more: a run ends, whatever is slow in it.
    pub fn limit(&self) -> Duration {
        Duration::from_secs(60 * if self.quick { 10 } else { 120 })
    }

    /// How long a contender works in each round.
    pub fn window(&self) -> Duration {
        Duration::from_millis(if self.quick { 100 } else { 1000 })
    }

    /// The same where many take part.
    pub fn long_window(&self) -> Duration {
        self.window() * 2
    }

    /// How many wait, from few to very many.
    pub fn waiters(&self) -> &'static [usize] {
        if self.quick {
            &[1, 100]
        } else {
            &[1, 10, 100, 1000, 10_000]
        }
    }

    /// The same where nothing happens to them, which takes long to see.
    pub fn idlers(&self) -> &'static [usize] {
        if self.quick {
            &[100]
        } else {
            &[1, 100, 1000, 10_000]
        }
    }

    /// How many locks are held.
    pub fn holders(&self) -> &'static [usize] {
        if self.quick {
            &[1000]
        } else {
            &[100, 1000, 10_000]
        }
    }

    /// How many names one client uses.
    pub fn names(&self) -> &'static [usize] {
        if self.quick {
            &[100, 10_000]
        } else {
            &[1, 10, 100, 1000, 10_000]
        }
    }

    /// How many clients there are.
    pub fn clients(&self) -> &'static [usize] {
        if self.quick {
            &[2, 100]
        } else {
            &[2, 10, 100, 500]
        }
    }
}
