//! The work of a task that is done once.

use std::time::Duration;

use leasehold_chaos::{Mode, Policy, What};
use leasehold_core::{Begun, Completion, Fenced, Once, OnceGuard};
use tokio::time::{sleep, timeout};

use crate::machine::now_nanos;
use crate::plan::{Ends, Work};
use crate::work::{Open, Worker, claim};

impl Worker {
    pub(crate) async fn work_once(&self, op: u64, work: &Work) {
        let mut open = Open {
            op,
            record: &self.record,
            holds: false,
            noted: false,
        };
        let begin = now_nanos();
        self.record.at(
            begin,
            What::Invoke {
                op,
                lock: work.lock.to_owned(),
                mode: Mode::Exclusive,
                // Tasks of one client have one place in the queue.
                policy: if work.tries {
                    Policy::Try
                } else {
                    Policy::Fast
                },
                deadline: work.limit.map(|limit| begin + limit.as_nanos() as u64),
                owner: None,
            },
        );
        self.record.at(
            begin,
            What::Once {
                op,
                fire: work.fire,
            },
        );
        let once = self
            .store
            .once(work.lock)
            .fire(work.fire)
            .keep(work.keep)
            .label(format!("op-{op}"));
        let leaves = work.leaves.unwrap_or(Duration::from_secs(3600));
        let begun = timeout(leaves, begun(&once, work)).await;
        let t = now_nanos();
        let guard = match begun {
            // The caller leaves.
            Err(_) => return,
            Ok(Err(error)) => {
                self.record.at(t, self.refusal(op, &error));
                open.noted = true;
                return;
            }
            Ok(Ok(Begun::AlreadyDone(completion))) => {
                self.record.at(t, What::Fail { op, busy: false });
                open.noted = true;
                return self.told_done(op, work, &completion, begin);
            }
            Ok(Ok(Begun::Attempt(guard))) => guard,
        };
        let left = guard.remaining().as_nanos() as u64;
        // A guard whose validity has ended meanwhile claims nothing.
        if left == 0 {
            return;
        }
        let under = guard
            .place()
            .map(|place| claim(self.process, place.as_str()));
        if let Some(claim) = under {
            self.record.at(t, What::Under { op, claim });
        }
        self.record.at(
            t,
            What::Ok {
                op,
                tok: guard.fencing_token().get(),
                valid: t + left,
            },
        );
        open.holds = true;
        self.take_time(op, work, &guard).await;
        self.end(&mut open, work, once, guard).await;
    }

    /// Works for a while, as long as the library says that it holds.
    async fn take_time(&self, op: u64, work: &Work, guard: &OnceGuard) {
        let end = now_nanos() + work.takes.as_nanos() as u64;
        loop {
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
            if left == 0 || t >= end {
                return;
            }
            sleep((self.unit / 20).min(Duration::from_nanos(end - t))).await;
        }
    }

    async fn end(&self, open: &mut Open<'_>, work: &Work, once: Once, guard: OnceGuard) {
        let op = open.op;
        let token = guard.fencing_token();
        if let Ends::Dropped = work.ends {
            // It is recorded as dropped before it is.
            open.noted = true;
            self.record.now(What::Release { op, dropped: true });
            return drop(guard);
        }
        open.noted = true;
        self.record.now(What::Release { op, dropped: false });
        let asked = now_nanos();
        let ended = async {
            match work.ends {
                Ends::Failed => guard.release().await.map(|()| None),
                _ => guard.complete().await.map(Some),
            }
        };
        let ended = match work.ends {
            Ends::Left(after) => timeout(after, ended).await,
            _ => Ok(ended.await),
        };
        let released = matches!(ended, Ok(Ok(_)));
        let error = ended.as_ref().ok().and_then(|ended| ended.as_ref().err());
        self.note(released, op, error);
        let Ok(Ok(Some(completion))) = ended else {
            return;
        };
        if completion.token != token || completion.fire != work.fire {
            let history = &self.record.history;
            history.unexpected(format!("op {op}: completed as {completion:?}"));
        }
        self.told_done(op, work, &completion, asked);
        if let Ends::Forgotten = work.ends {
            self.record.now(What::Forget {
                lock: work.lock.to_owned(),
                tok: token.get(),
            });
            if let Err(error) = once.forget(token).await {
                self.expect(op, &error);
            }
        }
    }

    /// Records that the caller was told. The record was read at `since` or later.
    fn told_done(&self, op: u64, work: &Work, completion: &Completion, since: u64) {
        let left = completion.left.unwrap_or_default().as_nanos() as u64;
        self.record.now(What::Done {
            op,
            lock: work.lock.to_owned(),
            tok: completion.token.get(),
            fire: completion.fire,
            since,
            // The server's clock may be faster.
            until: since + left - left / 50,
        });
    }
}

async fn begun(once: &Once, work: &Work) -> leasehold_core::Result<Begun> {
    match (work.tries, work.limit) {
        (true, _) => once.try_begin().await,
        (_, Some(limit)) => once.clone().wait(limit).begin().await,
        (_, None) => once.begin().await,
    }
}
