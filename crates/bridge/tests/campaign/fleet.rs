//! The client processes, each with ways of its own to the two stores, and the stage that each is deployed with.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::process::Stdio;
use std::time::Duration;

use leasehold_chaos::{Recorder, What};
use leasehold_testbed::Proxy;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};

use crate::client::{Plan, now};
use crate::pairs::Stage;

/// How often a client can be started again in one slot.
const LIVES: u64 = 10_000;

/// One of the fleet.
pub(crate) struct Slot {
    plan: RefCell<Plan>,
    process: tokio::sync::Mutex<Child>,
    /// Its ways to old and new.
    pub(crate) proxies: [Option<Proxy>; 2],
    /// How many of it were killed in each stage.
    pub(crate) kills: [Cell<u64>; 3],
}

impl Slot {
    pub(crate) fn start(nth: u64, mut plan: Plan, proxies: [Option<Proxy>; 2]) -> Slot {
        plan.p = LIVES * (nth + 1);
        plan.seed = plan.seed.wrapping_mul(31).wrapping_add(LIVES * nth);
        let process = tokio::sync::Mutex::new(spawn(&plan));
        Slot {
            plan: RefCell::new(plan),
            process,
            proxies,
            kills: Default::default(),
        }
    }

    pub(crate) fn stage(&self) -> Stage {
        self.plan.borrow().stage
    }

    pub(crate) async fn signal(&self, signal: Signal) {
        let pid = self
            .process
            .lock()
            .await
            .id()
            .and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        // One that has ended is seen when it is waited for.
        let _ = pid.map(|pid| kill_process(pid, signal));
    }

    /// Kills it; another one of the same stage takes its place.
    pub(crate) async fn kill(&self, record: &Recorder) {
        let mut process = self.process.lock().await;
        // Before the signal: what it held ends here.
        record
            .write(
                now(),
                What::Killed {
                    target: self.plan.borrow().p,
                },
            )
            .unwrap();
        process.kill().await.unwrap();
        let kills = &self.kills[self.stage() as usize];
        kills.set(kills.get() + 1);
        *process = self.next(self.stage());
    }

    /// A rolling deploy: it ends what is under way, and one of this stage takes its place. Says what went wrong.
    pub(crate) async fn deploy(&self, stage: Stage, within: Duration) -> Result<(), String> {
        let ended = self.drain(within).await;
        *self.process.lock().await = self.next(stage);
        ended
    }

    fn next(&self, stage: Stage) -> Child {
        let mut plan = self.plan.borrow_mut();
        (plan.p, plan.seed, plan.stage) = (plan.p + 1, plan.seed.wrapping_add(1), stage);
        spawn(&plan)
    }

    /// Lets it end what is under way.
    pub(crate) async fn drain(&self, within: Duration) -> Result<(), String> {
        let mut process = self.process.lock().await;
        let stdin = process.stdin.take();
        let said = async {
            let mut stdin = stdin?;
            stdin.write_all(b"drain\n").await.ok()?;
            stdin.flush().await.ok()?;
            Some(stdin)
        };
        let _stdin = said.await;
        let p = self.plan.borrow().p;
        match tokio::time::timeout(within, process.wait()).await {
            Ok(Ok(status)) if status.success() => Ok(()),
            Ok(status) => Err(format!("client {p} ended with {status:?}")),
            Err(_) => {
                process.kill().await.unwrap();
                Err(format!("client {p} has not ended within {within:?}"))
            }
        }
    }
}

fn spawn(plan: &Plan) -> Child {
    let log = File::create(plan.folder.join(format!("{:07}.log", plan.p))).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["client", &serde_json::to_string(plan).unwrap()]);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(log)
        .kill_on_drop(true);
    command.spawn().unwrap()
}
