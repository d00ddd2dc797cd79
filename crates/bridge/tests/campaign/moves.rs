//! The way there and back: stage 1, the bridge beside it, the seal, stage 3 beside the bridge; then the reverse.

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::time::Duration;

use leasehold::backend::{Backend, TokenFloor};
use leasehold::{Error, ErrorKind, Store};
use leasehold_chaos::{Mode, Policy, Recorder, What};

use crate::client::{ORDERS, Plan, now};
use crate::control;
use crate::fleet::Slot;
use crate::nemesis::Nemesis;
use crate::pairs::{Kind, Side, Stage, connect, connect_as, nanos};
use crate::resource;

/// How many clients the fleet has.
const FLEET: u64 = 5;
/// A name that nobody takes while the fleet holds in both stores.
pub(crate) const IDLE: &str = "idle";
/// How long a client may take to end what is under way.
const ENDS_WITHIN: Duration = Duration::from_secs(30);

struct Moving<'a> {
    nemesis: Nemesis<'a>,
    /// Old and new, without a proxy.
    urls: [String; 2],
    kills: u64,
    steps: Cell<u64>,
    ops: Cell<u64>,
    troubles: RefCell<Vec<String>>,
}

/// Moves a fleet and kills so many of each stage. Says what went wrong beside what the history tells.
pub(crate) async fn there_and_back(
    kind: Kind,
    kills: u64,
    seed: u64,
    folder: &Path,
) -> Vec<String> {
    let sides = Side::both(kind).await;
    let urls = [sides[0].url(None), sides[1].url(None)];
    let record = Recorder::new(folder, 0).unwrap();
    record
        .write(
            now(),
            What::Begin {
                store: kind.name().into(),
                seed,
                limits: kind.limits(),
            },
        )
        .unwrap();
    let (resource, counters) = resource::start(folder);
    let plan = Plan {
        p: 0,
        kind,
        stage: Stage::One,
        urls: urls.clone(),
        folder: folder.into(),
        resource,
        lock: ORDERS.into(),
        seed,
    };
    let mut slots = Vec::new();
    for nth in 0..FLEET {
        let proxies = [sides[0].proxy().await, sides[1].proxy().await];
        let urls = [
            sides[0].url(proxies[0].as_ref()),
            sides[1].url(proxies[1].as_ref()),
        ];
        slots.push(Slot::start(
            nth,
            Plan {
                urls,
                ..plan.clone()
            },
            proxies,
        ));
    }
    let random = RefCell::new(fastrand::Rng::with_seed(seed));
    let nemesis = Nemesis {
        kind,
        record: &record,
        sides: &sides,
        slots: &slots,
        random,
        ids: Cell::new(0),
    };
    let (steps, ops) = (Cell::new(0), Cell::new(0));
    let moving = Moving {
        nemesis,
        urls,
        kills,
        steps,
        ops,
        troubles: RefCell::default(),
    };
    moving.there_and_back(folder).await;
    for slot in &slots {
        moving.trouble(slot.drain(ENDS_WITHIN).await);
    }
    for (lock, value, writes) in counters.lock().unwrap().values() {
        if value != writes {
            moving.trouble(Err(format!(
                "{lock} was counted to {value} by {writes} writes"
            )));
        }
    }
    moving.nothing_left().await;
    record.write(now(), What::End).unwrap();
    moving.trouble(control::one_beside_three(&plan, folder).await);
    for log in std::fs::read_dir(folder)
        .unwrap()
        .flatten()
        .filter(|file| file.path().extension().is_some_and(|it| it == "log"))
    {
        let text = std::fs::read_to_string(log.path()).unwrap_or_default();
        if !text.trim().is_empty() {
            moving.trouble(Err(text.lines().take(3).collect::<Vec<_>>().join(" ")));
        }
    }
    let killed = |stage| {
        slots
            .iter()
            .map(|slot| slot.kills[stage as usize].get())
            .sum::<u64>()
    };
    println!(
        "killed: {} of stage 1, {} bridges, {} of stage 3",
        killed(Stage::One),
        killed(Stage::Bridge),
        killed(Stage::Three)
    );
    moving.troubles.into_inner()
}

impl Moving<'_> {
    async fn there_and_back(&self, folder: &Path) {
        use Stage::{Bridge, One, Three};
        // Before any bridge: most stores have one sequence of tokens for all names.
        self.trouble(control::without_a_seal(self.nemesis.kind, &self.urls, folder).await);
        self.stay(One, self.kills / 3).await;
        for _ in 0..3 {
            self.use_idle(One).await;
        }
        self.roll(Bridge).await;
        self.stay(Bridge, self.kills / 3).await;
        self.seal([0, 1]).await;
        self.use_idle(Three).await;
        self.roll(Three).await;
        self.stay(Three, self.kills * 2 / 3).await;
        self.use_idle(Three).await;
        self.roll(Bridge).await;
        self.stay(Bridge, 1).await;
        self.seal([1, 0]).await;
        self.use_idle(One).await;
        self.roll(One).await;
        self.stay(One, self.kills / 3).await;
    }

    /// One after the other is deployed anew, with kills in between.
    async fn roll(&self, stage: Stage) {
        for slot in self.nemesis.slots {
            let before = slot.stage();
            let deployed = slot.deploy(stage, ENDS_WITHIN).await;
            self.trouble(deployed);
            let mixed = if stage == Stage::Bridge {
                before
            } else {
                Stage::Bridge
            };
            let operator = if mixed == Stage::Bridge {
                Stage::Bridge
            } else {
                mixed.max(Stage::Bridge)
            };
            self.rage(
                operator,
                (self.kills / 12).max(u64::from(self.steps.get().is_multiple_of(3))),
            )
            .await;
        }
    }

    async fn stay(&self, stage: Stage, kills: u64) {
        self.rage(stage, kills / 2).await;
        self.rage(stage, kills.div_ceil(2)).await;
    }

    /// Every other time with more than kills.
    async fn rage(&self, operator: Stage, kills: u64) {
        let nth = self.steps.replace(self.steps.get() + 1);
        let Ok((operator, _)) = connect_as(operator, &self.urls).await else {
            return self.trouble(Err("the operator cannot connect".into()));
        };
        self.nemesis.rage(kills, nth % 2 == 1, &operator).await;
        let _ = operator.close(Duration::from_secs(2)).await;
    }

    /// The mark of the store that is left is told the other one.
    async fn seal(&self, [from, to]: [usize; 2]) {
        let sealed = async {
            let (from, to) = (
                connect(&self.urls[from]).await?,
                connect(&self.urls[to]).await?,
            );
            let mark = floor_of(&*from)?.mark().await?;
            floor_of(&*to)?.raise(mark).await?;
            from.close().await?;
            to.close().await
        };
        self.trouble(sealed.await.map_err(|e| format!("sealing: {e}")));
    }

    /// Somebody takes the name that is idle during stage 2, and gives it back.
    async fn use_idle(&self, stage: Stage) {
        let op = self.ops.replace(self.ops.get() + 1);
        let used = take(
            stage,
            self.nemesis.kind,
            &self.urls,
            self.nemesis.record,
            (op, IDLE),
        )
        .await;
        self.trouble(used.map(drop).map_err(|e| format!("{IDLE}: {e}")));
    }

    /// Both stores have no lock any more.
    async fn nothing_left(&self) {
        for url in &self.urls {
            let left = async {
                let store = Store::new(connect(url).await?);
                let names = store.list("", None, 100).await;
                let _ = store.close(Duration::from_secs(2)).await;
                names
            };
            let mut names = left.await;
            let until = now() + nanos(self.nemesis.kind.settle());
            while now() < until && !matches!(&names, Ok(names) if names.is_empty()) {
                tokio::time::sleep(Duration::from_millis(200)).await;
                let store = connect(url).await.map(Store::new);
                if let Ok(store) = store {
                    names = store.list("", None, 100).await;
                    let _ = store.close(Duration::from_secs(2)).await;
                }
            }
            match names {
                Ok(names) if names.is_empty() => {}
                names => self.trouble(Err(format!("left in a store: {names:?}"))),
            }
        }
    }

    fn trouble(&self, what: Result<(), String>) {
        self.troubles.borrow_mut().extend(what.err());
    }
}

/// Takes a lock in this stage, notes it, and gives it back. Its token.
pub(crate) async fn take(
    stage: Stage,
    kind: Kind,
    urls: &[String; 2],
    record: &Recorder,
    (op, lock): (u64, &str),
) -> leasehold::Result<u64> {
    let (store, _) = connect_as(stage, urls).await?;
    let (lock, mode, policy) = (lock.to_owned(), Mode::Exclusive, Policy::Fair);
    let note = |what| record.write(now(), what).unwrap();
    note(What::Invoke {
        op,
        lock: lock.clone(),
        mode,
        policy,
        deadline: None,
        owner: None,
    });
    let guard = store.lock(&lock).ttl(kind.ttl()).acquire().await?;
    let (t, tok) = (now(), guard.fencing_token().get());
    record
        .write(
            t,
            What::Ok {
                op,
                tok,
                valid: t + nanos(guard.remaining()),
            },
        )
        .unwrap();
    note(What::Release { op, dropped: false });
    guard.release().await?;
    note(What::Released { op });
    let _ = store.close(Duration::from_secs(2)).await;
    Ok(tok)
}

fn floor_of(store: &dyn Backend) -> leasehold::Result<&dyn TokenFloor> {
    let none = || Error::new(ErrorKind::Unsupported, "its tokens cannot be raised");
    store.token_floor().ok_or_else(none)
}
