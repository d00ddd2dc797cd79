//! Releases that were answered are sent again once another server is in the place of the one that answered: a replica that is promoted may
//! lack the last of them, and the lock would stay taken there until its lease ends.
//!
//! A repeat ends no hold that is valid: it names the id of a claim, and core sends no claim with an id that it has released. It is a
//! service, and no promise: what is not remembered, or not answered in time, ends with its lease.

use std::collections::VecDeque;
use std::iter::zip;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use leasehold_core::Name;
use leasehold_core::seam::{Claim, ClaimId, Moment};
use leasehold_core::support::locked;
use leasehold_redis_client::{Call, Names};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::sleep;

use crate::client::nodes::Nodes;

/// So many are remembered, the last ones.
const REMEMBERED: usize = 512;
/// So many are sent together. The next ones wait for their answers, so that the claims of other clients come between them.
const AT_ONCE: usize = 100;
/// The pause before those that were not answered are sent once more.
const PAUSE: Duration = Duration::from_secs(1);

/// The last releases of a client, and the task that sends them again.
pub(crate) struct Releases {
    known: Arc<Known>,
    task: Mutex<AbortHandle>,
}

struct Known {
    last: Mutex<VecDeque<Release>>,
    nodes: Weak<Nodes>,
    names: Names,
    replaced: Arc<Notify>,
    call: fn(&Nodes, &str, ClaimId) -> Call,
}

/// One that was answered.
#[derive(Clone)]
struct Release {
    id: ClaimId,
    name: Name,
    /// When its lease would have ended.
    until: Moment,
    /// The server that answered.
    server: Arc<str>,
}

impl Releases {
    /// Inside a runtime. `replaced` says when another server may be in the place of one; `call` releases a claim of a lock.
    pub(crate) fn new(
        nodes: &Arc<Nodes>,
        names: &Names,
        replaced: &Arc<Notify>,
        call: fn(&Nodes, &str, ClaimId) -> Call,
    ) -> Releases {
        let (nodes, names, replaced) = (Arc::downgrade(nodes), names.clone(), replaced.clone());
        let known = Arc::new(Known { last: Mutex::default(), nodes, names, replaced, call });
        let task = Mutex::new(tokio::spawn(keep(known.clone())).abort_handle());
        Releases { known, task }
    }

    /// This server has answered the release of this claim. Where the runtime of the task has ended, the caller's takes over.
    pub(crate) fn remember(&self, claim: &Claim, server: Arc<str>) {
        let until = Moment::now() + claim.ttl;
        self.known.remember(Release { id: claim.id, name: claim.name.clone(), until, server });
        let mut task = locked(&self.task);
        if task.is_finished()
            && let Ok(runtime) = Handle::try_current()
        {
            *task = runtime.spawn(keep(self.known.clone())).abort_handle();
        }
    }
}

impl Drop for Releases {
    fn drop(&mut self) {
        locked(&self.task).abort();
    }
}

impl Known {
    fn remember(&self, release: Release) {
        let mut last = locked(&self.last);
        if last.len() == REMEMBERED {
            last.pop_front();
        }
        // At once as large as it gets: so that it does not grow with what a client does.
        if last.capacity() == 0 {
            last.reserve_exact(REMEMBERED);
        }
        last.push_back(release);
    }

    /// Takes out those that another server answered than the one where their lock is now, and forgets those whose leases have ended.
    fn take_due(&self, now: Moment, server_of: impl Fn(&Release) -> Option<Arc<str>>) -> Vec<(Release, Arc<str>)> {
        let mut last = locked(&self.last);
        let mut due = Vec::new();
        last.retain(|release| {
            let lives = release.until > now;
            let server = server_of(release).filter(|server| lives && *server != release.server);
            let stays = lives && server.is_none();
            due.extend(server.map(|server| (release.clone(), server)));
            stays
        });
        due
    }

    /// Sends what is due. Whether all of it was answered.
    async fn send(&self, nodes: &Nodes) -> bool {
        let lock = |release: &Release| self.names.lock(&release.name);
        let mut due = self.take_due(Moment::now(), |release| nodes.server_of(&lock(release)).ok());
        let mut all = true;
        for some in due.chunks_mut(AT_ONCE) {
            let call = |lock: String, id| ((self.call)(nodes, &lock, id), lock);
            let calls = some.iter().map(|(release, _)| call(lock(release), release.id)).collect();
            for ((release, server), answer) in zip(some, nodes.run_all(calls).await) {
                match answer {
                    Ok(_) => release.server = server.clone(),
                    Err(_) => all = false,
                }
                self.remember(release.clone());
            }
        }
        all
    }
}

/// Sends them again whenever that is due, as long as the store is there.
async fn keep(known: Arc<Known>) {
    loop {
        known.replaced.notified().await;
        loop {
            let Some(nodes) = known.nodes.upgrade() else { return };
            if known.send(&nodes).await {
                break;
            }
            drop(nodes);
            sleep(PAUSE).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known() -> Known {
        let (last, nodes, replaced) = (Mutex::default(), Weak::new(), Arc::default());
        let call: fn(&Nodes, &str, ClaimId) -> Call = |_, _, _| unreachable!("nothing is sent");
        Known { last, nodes, names: Names::new("", &["l"]).unwrap(), replaced, call }
    }

    fn release(name: &str, until: Moment, server: &str) -> Release {
        Release { id: ClaimId::fresh(), name: name.into(), until, server: server.into() }
    }

    #[test]
    fn what_another_server_answered_is_due_while_its_lease_would_live() {
        let (known, now) = (known(), Moment::from_nanos(100));
        let later = now + PAUSE;
        for (name, until, server) in
            [("a", later, "old"), ("b", now, "old"), ("c", later, "new"), ("down", later, "old")]
        {
            known.remember(release(name, until, server));
        }
        let server_of = |release: &Release| (release.name.as_str() != "down").then(|| "new".into());
        let due = known.take_due(now, server_of);
        assert!(matches!(&due[..], [(release, server)] if release.name.as_str() == "a" && **server == *"new"));
        let left: Vec<Name> = locked(&known.last).iter().map(|release| release.name.clone()).collect();
        assert_eq!(left, ["c".into(), "down".into()]);
    }

    #[test]
    fn only_the_last_are_remembered_and_in_no_more_memory() {
        let known = known();
        for n in 0..=REMEMBERED {
            known.remember(release(&n.to_string(), Moment::from_nanos(1), ""));
        }
        let last = locked(&known.last);
        assert_eq!((last.len(), last.front().unwrap().name.as_str()), (REMEMBERED, "1"));
        assert!(last.capacity() < 2 * REMEMBERED);
    }
}
