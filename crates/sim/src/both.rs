//! Two locks at once, as `multi_lock` takes them. In the history each of them is an acquisition of its own.

use std::time::Duration;

use leasehold_chaos::{Mode, Policy, What};
use leasehold_core::{ErrorKind, Fenced, Guard, Loss, MultiGuard};
use tokio::time::sleep;

use crate::machine::now_nanos;
use crate::meanwhile::meanwhile;
use crate::plan::{LOCKS, MS};
use crate::work::{Open, Worker, claim};

/// Which two.
const NAMES: [&str; 2] = [LOCKS[0], LOCKS[1]];
/// How late it may be beyond one lock: at its deadline the step of all, and each name, has a last attempt of 40 ms.
const LATE: u64 = 80 * MS;
/// The numbers of the second of the two begin here.
const SECOND: u64 = 500_000;

impl Worker {
    /// Takes both, uses both, and gives both back.
    pub(crate) async fn both(&self, op: u64, limit: Option<Duration>, holds: Duration) {
        let (ops, begin) = ([op, op + SECOND], now_nanos());
        for (op, lock) in ops.into_iter().zip(NAMES) {
            // Whoever waits for the second lock while it has the first one does not stand in the first queue: nobody may expect it there.
            let (lock, deadline) = (lock.to_owned(), limit.map(|limit| begin + limit.as_nanos() as u64 + LATE));
            let (mode, policy) = (Mode::Exclusive, Policy::Try);
            self.record.at(begin, What::Invoke { op, lock, mode, policy, deadline, owner: None });
        }
        let mut opens = ops.map(|op| Open { op, record: &self.record, holds: false, noted: false });
        let locks = self.store.multi_lock(NAMES).label("both");
        let acquired = match limit {
            Some(limit) => locks.acquire_timeout(limit).await,
            None => locks.try_acquire().await,
        };
        let t = now_nanos();
        let held = match acquired {
            Ok(held) => held,
            Err(error) => {
                let refused =
                    matches!(error.kind(), ErrorKind::Contended | ErrorKind::TimedOut | ErrorKind::Unavailable);
                if !refused && !matches!(error.kind(), ErrorKind::Ambiguous | ErrorKind::Lost) {
                    self.unexpected(op, &error);
                }
                // Which of the two was in the way is not said of each.
                let ended = |op| if refused { What::Fail { op, busy: false } } else { What::Info { op } };
                ops.into_iter().for_each(|op| self.record.at(t, ended(op)));
                return opens.iter_mut().for_each(|open| open.noted = true);
            }
        };
        // Guards whose validity has ended meanwhile claim nothing.
        if held.remaining().is_zero() {
            return;
        }
        for (op, guard) in ops.into_iter().zip(guards(&held)) {
            let (tok, left) = (guard.fencing_token().get(), guard.remaining().as_nanos() as u64);
            if let Some(place) = guard.place() {
                self.record.at(t, What::Under { op, claim: claim(self.process, place.as_str()) });
            }
            self.record.at(t, What::Ok { op, tok, valid: t + left.max(1) });
            let (lost, record) = (guard.lost(), self.record.clone());
            tokio::spawn(async move {
                let loss = lost.await;
                if loss != Loss::Released {
                    record.now(What::Lost { op, why: format!("{loss:?}"), aside: false });
                }
            });
        }
        opens.iter_mut().for_each(|open| open.holds = true);
        self.use_both(ops, &held, t + holds.as_nanos() as u64).await;
        ops.into_iter().for_each(|op| self.record.now(What::Release { op, dropped: false }));
        opens.iter_mut().for_each(|open| open.noted = true);
        let released = held.release().await.is_ok();
        for op in ops {
            self.record.now(if released { What::Released { op } } else { What::Unreleased { op } });
        }
    }

    async fn use_both(&self, ops: [u64; 2], held: &MultiGuard, until: u64) {
        let says = |op, guard: &Guard| {
            let (t, left) = (now_nanos(), guard.remaining().as_nanos() as u64);
            if left > 0 {
                self.record.at(t, What::Use { op, valid: t + left });
            }
            left
        };
        let both = || ops.into_iter().zip(guards(held)).map(|(op, guard)| says(op, guard)).min().unwrap_or_default();
        while now_nanos() < until {
            for ((op, lock), guard) in ops.into_iter().zip(NAMES).zip(guards(held)) {
                if guard.remaining().is_zero() {
                    return;
                }
                if !meanwhile(both, self.write(op, lock, guard.fencing_token().get())).await {
                    return;
                }
            }
            sleep(self.unit / 20).await;
        }
    }
}

/// Their guards, in the order of the names.
fn guards(held: &MultiGuard) -> impl Iterator<Item = &Guard> {
    NAMES.into_iter().filter_map(|name| held.get(name))
}
