//! The tasks of one client that want the same work done once: they stand behind one claim.
//!
//! A crowd of tasks that come for the same key would each take a place in the store, and each would
//! be told there that the work is done. Here one of them, the leader, claims for all. When the work
//! is done, all of them are told. When it is not, because the leader's work failed, or its caller
//! left, the next task leads: one task's failure is no other's.
//!
//! Nothing is remembered: a task that comes later asks the store, where a completion may have been
//! forgotten meanwhile.
//!
//! A leader that waits in the store and is not polled would keep the others from claiming. A task
//! that sees no sign of its leader for two leases claims for itself.

use std::collections::{HashMap, VecDeque};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::backend::clock::{Clock, Moment};
use crate::backend::completion::Completion;
use crate::backend::contention::Contention;
use crate::backend::error::{Error, Result};
use crate::backend::name::Name;
use crate::engine::client::Client;
use crate::engine::wait::Wait;
use crate::support::locked;
use crate::support::sync::Mutex;

/// The names for which a task of this client leads.
#[derive(Default)]
pub(crate) struct LocalOnce(Mutex<HashMap<Name, Line>>);

/// The tasks that wait for one leader.
struct Line {
    waiters: VecDeque<Waiter>,
    /// The moment when the leader was polled last, while it waits in the store; `None` once it
    /// holds.
    polled: Option<Moment>,
    label: Arc<str>,
}

impl Line {
    /// Adds a waiter behind those that still wait. Tasks that wait for a short time behind long work,
    /// again and again, leave nothing behind.
    fn add(&mut self, waiter: Waiter) {
        self.waiters.retain(|other| !other.sign.is_closed());
        self.waiters.push_back(waiter);
    }
}

struct Waiter {
    fire: u64,
    label: Arc<str>,
    sign: oneshot::Sender<Sign>,
}

/// The end of a task's wait.
enum Sign {
    Lead(Leader),
    Done(Completion),
}

/// The result of standing in line.
pub(crate) enum Stood {
    /// The task claims in the store, for itself and for those behind it.
    Lead(Leader),
    /// The task claims in the store for itself alone.
    Alone,
    /// The work is done.
    Done(Completion),
}

/// The right to claim in the store for all tasks of a line. When it is dropped, it goes to the next
/// task.
pub(crate) struct Leader {
    lines: Weak<LocalOnce>,
    name: Name,
    clock: Clock,
}

impl LocalOnce {
    /// Leads, or waits for the leader of this name.
    pub(crate) async fn stand(
        self: &Arc<Self>,
        client: &Client,
        (name, fire, label): (&Name, u64, &Arc<str>),
        ttl: Duration,
        wait: Wait,
    ) -> Result<Stood> {
        let started = client.clock.now();
        let (sign, mut signed) = oneshot::channel();
        {
            let mut lines = locked(&self.0);
            let Some(line) = lines.get_mut(name) else {
                let line = Line {
                    waiters: VecDeque::new(),
                    polled: Some(started),
                    label: label.clone(),
                };
                lines.insert(name.clone(), line);
                return Ok(Stood::Lead(Leader {
                    lines: Arc::downgrade(self),
                    name: name.clone(),
                    clock: client.clock.clone(),
                }));
            };
            line.add(Waiter {
                fire,
                label: label.clone(),
                sign,
            });
        }
        let deadline = wait.ends_at(started);
        loop {
            let now = client.clock.now();
            if let Some(at) = deadline
                && at <= now
            {
                return Err(Error::timed_out(self.leader_of(name)));
            }
            if self.is_silent(name, now, ttl) {
                return Ok(Stood::Alone);
            }
            let look = now + ttl;
            let until = deadline.map_or(look, |at| at.min(look));
            drop(client.register_this_runtime());
            tokio::select! {
                biased;
                sign = &mut signed => return Ok(match sign {
                    Ok(Sign::Lead(leader)) => Stood::Lead(leader),
                    Ok(Sign::Done(completion)) => Stood::Done(completion),
                    Err(_) => Stood::Alone,
                }),
                () = client.clock.coarse_sleep_until(until) => client.open()?,
            }
        }
    }

    fn is_silent(&self, name: &Name, now: Moment, ttl: Duration) -> bool {
        locked(&self.0)
            .get(name)
            .and_then(|line| line.polled)
            .is_some_and(|polled| polled + 2 * ttl < now)
    }

    fn leader_of(&self, name: &Name) -> Contention {
        locked(&self.0)
            .get(name)
            .map_or_else(Contention::unknown, |line| Contention::by(&*line.label))
    }
}

impl Leader {
    /// Polls the leader's own way to the store, and shows the others that it is polled.
    pub(crate) async fn goes<T>(&self, way: impl Future<Output = T>) -> T {
        let mut way = pin!(way);
        poll_fn(|context| {
            self.with(|line| line.polled = Some(self.clock.now()));
            way.as_mut().poll(context)
        })
        .await
    }

    /// The leader holds: the others wait for its work, as they would in the store.
    pub(crate) fn holds(&self) {
        self.with(|line| line.polled = None);
    }

    /// Tells all tasks of the line for which this completion counts that the work is done. The next
    /// of the others leads.
    pub(crate) fn tells(self, completion: &Completion) {
        let told = self.with(|line| {
            let all = std::mem::take(&mut line.waiters);
            let counts = |waiter: &Waiter| completion.counts_for(waiter.fire);
            let (told, others): (VecDeque<_>, _) = all.into_iter().partition(counts);
            line.waiters = others;
            told
        });
        for waiter in told.into_iter().flatten() {
            drop(waiter.sign.send(Sign::Done(completion.clone())));
        }
    }

    fn with<T>(&self, work: impl FnOnce(&mut Line) -> T) -> Option<T> {
        let lines = self.lines.upgrade()?;
        let mut lines = locked(&lines.0);
        lines.get_mut(&self.name).map(work)
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        let Some(lines) = self.lines.upgrade() else {
            return;
        };
        let mut all = locked(&lines.0);
        let next = all.get_mut(&self.name).and_then(|line| {
            let next = line.waiters.pop_front()?;
            line.polled = Some(self.clock.now());
            line.label = next.label.clone();
            Some(next)
        });
        let Some(next) = next else {
            all.remove(&self.name);
            return;
        };
        drop(all);
        let leader = Leader {
            lines: self.lines.clone(),
            name: self.name.clone(),
            clock: self.clock.clone(),
        };
        // A task that has left gives the right back, and it goes to the one behind it.
        drop(next.sign.send(Sign::Lead(leader)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_keeps_only_tasks_that_wait() {
        let mut line = Line {
            waiters: VecDeque::new(),
            polled: None,
            label: "leader".into(),
        };
        let waiter = |sign| Waiter {
            fire: 0,
            label: "waiter".into(),
            sign,
        };
        let (sign, _waits) = oneshot::channel();
        line.add(waiter(sign));
        for _ in 0..100 {
            let (sign, left) = oneshot::channel();
            drop(left);
            line.add(waiter(sign));
        }
        assert_eq!(line.waiters.len(), 2);
    }
}
