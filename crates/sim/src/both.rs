//! Two locks at once, as `multi_lock` takes them. The history has one acquisition for each of them.

use std::time::Duration;

use leasehold_chaos::{Mode, Policy, What};
use leasehold_core::{ErrorKind, Fenced, Guard, Loss, MultiGuard};
use tokio::time::sleep;

use crate::machine::now_nanos;
use crate::meanwhile::meanwhile;
use crate::plan::{LOCKS, MS};
use crate::work::{Open, Worker, claim};

/// The names of the two locks.
const NAMES: [&str; 2] = [LOCKS[0], LOCKS[1]];
/// The delay that is allowed beyond that of one lock, in nanoseconds. At the deadline, the step for
/// all names and the step for each name have a last attempt of 40 ms each.
const LATE: u64 = 80 * MS;
/// The offset from the number of the first acquisition to that of the second.
const SECOND: u64 = 500_000;

impl Worker {
    /// Takes both locks, uses both, and gives both back.
    pub(crate) async fn both(&self, op: u64, limit: Option<Duration>, holds: Duration) {
        let ops = [op, op + SECOND];
        let begin = now_nanos();
        for (op, lock) in ops.into_iter().zip(NAMES) {
            // A client that waits for the second lock while it has the first one is not in the
            // first queue, and the checker must not expect it there. Both are therefore recorded as
            // tries.
            let lock = lock.to_owned();
            let deadline = limit.map(|limit| begin + limit.as_nanos() as u64 + LATE);
            let mode = Mode::Exclusive;
            let policy = Policy::Try;
            self.record.at(
                begin,
                What::Invoke {
                    op,
                    lock,
                    mode,
                    policy,
                    deadline,
                    owner: None,
                },
            );
        }
        let mut opens = ops.map(|op| Open {
            op,
            record: &self.record,
            holds: false,
            noted: false,
        });
        let locks = self.store.multi_lock(NAMES).label("both");
        let acquired = match limit {
            Some(limit) => locks.acquire_timeout(limit).await,
            None => locks.try_acquire().await,
        };
        let t = now_nanos();
        let held = match acquired {
            Ok(held) => held,
            Err(error) => {
                let refused = matches!(
                    error.kind(),
                    ErrorKind::Contended | ErrorKind::TimedOut | ErrorKind::Unavailable
                );
                if !refused && !matches!(error.kind(), ErrorKind::Ambiguous | ErrorKind::Lost) {
                    self.unexpected(op, &error);
                }
                // The error does not say which of the two was in the way, so `busy` is false for
                // both.
                let ended = |op| {
                    if refused {
                        What::Fail { op, busy: false }
                    } else {
                        What::Info { op }
                    }
                };
                ops.into_iter().for_each(|op| self.record.at(t, ended(op)));
                return opens.iter_mut().for_each(|open| open.noted = true);
            }
        };
        // Guards whose validity has ended meanwhile claim nothing.
        if held.remaining().is_zero() {
            return;
        }
        for (op, guard) in ops.into_iter().zip(guards(&held)) {
            let tok = guard.fencing_token().get();
            let left = guard.remaining().as_nanos() as u64;
            if let Some(place) = guard.place() {
                self.record.at(
                    t,
                    What::Under {
                        op,
                        claim: claim(self.process, place.as_str()),
                    },
                );
            }
            self.record.at(
                t,
                What::Ok {
                    op,
                    tok,
                    valid: t + left.max(1),
                },
            );
            let lost = guard.lost();
            let record = self.record.clone();
            tokio::spawn(async move {
                let loss = lost.await;
                if loss != Loss::Released {
                    record.now(What::Lost {
                        op,
                        why: format!("{loss:?}"),
                        aside: false,
                    });
                }
            });
        }
        opens.iter_mut().for_each(|open| open.holds = true);
        self.use_both(ops, &held, t + holds.as_nanos() as u64).await;
        ops.into_iter()
            .for_each(|op| self.record.now(What::Release { op, dropped: false }));
        opens.iter_mut().for_each(|open| open.noted = true);
        let released = held.release().await.is_ok();
        for op in ops {
            self.record.now(if released {
                What::Released { op }
            } else {
                What::Unreleased { op }
            });
        }
    }

    async fn use_both(&self, ops: [u64; 2], held: &MultiGuard, until: u64) {
        let says = |op, guard: &Guard| {
            let t = now_nanos();
            let left = guard.remaining().as_nanos() as u64;
            if left > 0 {
                self.record.at(
                    t,
                    What::Use {
                        op,
                        valid: t + left,
                    },
                );
            }
            left
        };
        let both = || {
            ops.into_iter()
                .zip(guards(held))
                .map(|(op, guard)| says(op, guard))
                .min()
                .unwrap_or_default()
        };
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

/// The guards of both locks, in the order of the names.
fn guards(held: &MultiGuard) -> impl Iterator<Item = &Guard> {
    NAMES.into_iter().filter_map(|name| held.get(name))
}
