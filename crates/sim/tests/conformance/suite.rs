//! The conformance suite on the servers in memory, over the simulated network and in simulated time: what real servers do for Leasehold,
//! they do. Each case in each variant is a test, on a stage of its own and by a seed that follows from its name: what fails once fails again.
//! `LEASEHOLD_SEED` asks for another seed of all.

mod etcd;
mod redis;
mod unfit;
mod zookeeper;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use leasehold_conformance::{CASES, Case, Harness, Link, Variant, judge_apart};
use leasehold_core::backend::async_trait;
use leasehold_sim::Kind;
use leasehold_sim::stage::{Link as Way, Site, Stage};
use libtest_mimic::{Arguments, Failed, Trial};

/// How much simulated time a case may take.
const LIMIT: Duration = Duration::from_secs(3600);

/// The stores whose servers are judged. `simple` is a part of the simulation, and the server of no store.
const KINDS: [Kind; 4] = [Kind::Redis, Kind::Redlock, Kind::Etcd, Kind::ZooKeeper];

/// The suite's power over servers in memory.
fn harness(kind: Kind, stage: &Stage) -> Arc<dyn Harness> {
    match kind {
        Kind::Simple => {
            unreachable!("no client of it evicts or lists: it has only what worlds ask for")
        }
        Kind::Redis | Kind::Redlock | Kind::Redlock5 => {
            Arc::new(redis::World(stage.servers(kind, redis::TTL)))
        }
        Kind::Etcd | Kind::Etcd3 => Arc::new(etcd::World(stage.servers(kind, etcd::TTL))),
        Kind::ZooKeeper | Kind::ZooKeeper3 => {
            Arc::new(zookeeper::World(stage.servers(kind, zookeeper::TTL)))
        }
    }
}

fn seed(kind: Kind, title: &str) -> u64 {
    let said = std::env::var("LEASEHOLD_SEED")
        .ok()
        .and_then(|said| u64::from_str_radix(&said, 16).ok());
    let mut hasher = DefaultHasher::new();
    (kind.name(), title).hash(&mut hasher);
    said.unwrap_or_else(|| hasher.finish())
}

/// One case on a stage of its own: what came of it, after how much simulated time and how many messages.
fn judged(
    kind: Kind,
    case: &'static Case,
    variant: Variant,
) -> (Result<(), String>, Duration, u64) {
    let seed = seed(kind, &case.title(variant));
    let mut stage = Stage::new(seed);
    let harness = harness(kind, &stage);
    let verdict = stage.run(LIMIT, judge_apart(case, harness, variant, seed));
    let verdict =
        verdict.unwrap_or_else(|| Err(format!("seed {seed:x}: not done after {LIMIT:?}")));
    (verdict, stage.passed(), stage.sent())
}

/// One seed is one run.
fn goes_the_same_way_again(kind: Kind) -> Result<(), Failed> {
    let of = |name: &str| {
        CASES
            .iter()
            .find(|case| case.name == name)
            .ok_or(format!("no case {name}"))
    };
    for (name, variant) in [
        ("exclusion/contenders", Variant::Faulty),
        ("waiting/skips_the_dead", Variant::Bare),
    ] {
        let case = of(name)?;
        let (first, again) = (judged(kind, case, variant), judged(kind, case, variant));
        if first != again {
            return Err(format!("{}: {first:?} and then {again:?}", case.title(variant)).into());
        }
    }
    Ok(())
}

pub(crate) fn main() -> ExitCode {
    let args = Arguments::from_args();
    // A case fails by panicking, and what it said is in its verdict.
    std::panic::set_hook(Box::new(|_| {}));
    let mut trials = vec![Trial::test("what_is_not_judged_is_listed", || {
        unfit::is_listed(&KINDS)
    })];
    let mut unfit = Vec::new();
    for kind in KINDS {
        let named = |what: &str| format!("{}: {what}", kind.name());
        trials.push(Trial::test(named("goes the same way again"), move || {
            goes_the_same_way_again(kind)
        }));
        for lack in unfit::lacks(kind) {
            let name = named(&format!("lacks {:?}", lack.0));
            trials.push(Trial::test(name, move || unfit::is_lacking(kind, lack.0)));
        }
        for case in CASES {
            let why = unfit::why(kind, case);
            unfit.extend(
                why.iter()
                    .map(|why| format!("  {}: {why}", named(case.name))),
            );
            for variant in case.variants() {
                let name = named(&case.title(variant));
                let trial = Trial::test(name, move || {
                    judged(kind, case, variant).0.map_err(Failed::from)
                });
                trials.push(trial.with_ignored_flag(why.is_some()));
            }
        }
    }
    let conclusion = libtest_mimic::run(&args, trials);
    if !args.list && args.filter.is_none() {
        unfit.iter().for_each(|line| println!("{line}"));
    }
    conclusion.exit_code()
}

/// The network between a client of a case and its servers.
struct Network(Way);

#[async_trait]
impl Link for Network {
    async fn black_hole(&self) {
        self.0.hold();
    }
    async fn lose_replies(&self) {
        self.0.hold_replies();
    }
    async fn cut(&self) {
        self.0.cut();
    }
    async fn heal(&self) {
        self.0.heal();
    }
}

/// A number for each row of a resource beside the locks.
fn row(site: &Site) -> String {
    format!("row/{}", site.counts().contents)
}
