//! The interface between a store's test and the suite: clients, the length of leases, and power
//! over the server.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::backend::{Backend, async_trait};
use leasehold_core::{Fenced, Result};

/// A running store, and power over it. Methods beyond `client` are called only if [`capabilities`](Harness::capabilities) names them.
#[async_trait]
pub trait Harness: Send + Sync + 'static {
    /// The store's name in reports.
    fn store_name(&self) -> &'static str;

    /// A new client, as another process would have: its own connection, session and notifier.
    async fn client(&self) -> Arc<dyn Backend>;

    /// The lease that cases use: the shortest that is comfortable on a busy machine.
    fn ttl(&self) -> Duration;

    /// The prefix of every name that cases use.
    fn prefix(&self) -> &str {
        ""
    }

    /// Prints a count or a time of a case, for people.
    fn tell(&self, what: &str) {
        println!("{}: {what}", self.store_name());
    }

    /// The number of clients in the counting case.
    fn counters(&self) -> usize {
        10
    }

    /// The abilities of this harness.
    fn capabilities(&self) -> Capabilities;

    /// A world of its own, for cases that disturb all others.
    async fn private(&self) -> Arc<dyn Harness> {
        unreachable!("not among the capabilities")
    }

    /// A client whose network the case controls.
    async fn linked_client(&self) -> (Arc<dyn Backend>, Arc<dyn Link>) {
        unreachable!("not among the capabilities")
    }

    /// A client whose address the case can lead to another server.
    async fn misled_client(&self) -> (Arc<dyn Backend>, Arc<dyn Detour>) {
        unreachable!("not among the capabilities")
    }

    /// A client, and a resource in the same store whose writes carry this client's own condition (`still_holds`).
    async fn fenced_client(&self) -> (Arc<dyn Backend>, Arc<dyn FencedResource>) {
        unreachable!("not among the capabilities")
    }

    /// Deletes, without any client's doing, the holder's entry of a lock.
    async fn delete_holder(&self, _full_name: &str) {
        unreachable!("not among the capabilities")
    }

    /// Takes the lock as another tool would, in the store's plain layout, until the answer is dropped or released.
    async fn hold_as_another_tool(&self, _full_name: &str) -> Box<dyn ForeignHold> {
        unreachable!("not among the capabilities")
    }

    /// Puts data at the lock's place that cannot be a lock.
    async fn put_junk(&self, _full_name: &str) {
        unreachable!("not among the capabilities")
    }

    /// Restarts the server with its data.
    async fn restart(&self) {
        unreachable!("not among the capabilities")
    }

    /// Deletes all data of the server.
    async fn wipe(&self) {
        unreachable!("not among the capabilities")
    }

    /// The number of requests that clients have sent to the server so far, by the server's own
    /// counters.
    async fn requests(&self) -> u64 {
        unreachable!("not among the capabilities")
    }

    /// The number of servers that each request goes to, and is counted at.
    fn servers(&self) -> u64 {
        1
    }

    /// The number of requests that an uncontended cycle, and a hand-over under contention, may
    /// cost.
    fn budget(&self) -> Budget {
        unreachable!("not among the capabilities")
    }

    /// The number of requests that the renewal of one place may cost, once in a third of its lease,
    /// when many places of one client are renewed.
    fn renewals_of_a_waiter(&self) -> f64 {
        0.1
    }

    /// The number of keys, nodes, leases and sessions that the server has, without those that end
    /// by themselves.
    async fn footprint(&self) -> u64 {
        unreachable!("not among the capabilities")
    }

    /// The number of keys, nodes or rows that the server has, with those that end by themselves.
    async fn contents(&self) -> u64 {
        unreachable!("not among the capabilities")
    }

    /// The time for which the leftovers of this number of released names may stay, by the store's
    /// own page.
    fn forgets_within(&self, _names: usize) -> Duration {
        Duration::ZERO
    }

    /// The number of bytes that this process has allocated and not freed.
    fn heap(&self) -> usize {
        unreachable!("not among the capabilities")
    }

    /// The number of cycles in the campaign that measures the heap.
    fn cycles(&self) -> usize {
        100_000
    }
}

/// The costs of a store, in requests.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// The exact cost of acquire and release while no other client wants the lock.
    pub cycle: f64,
    /// The greatest cost of acquire and release while any number of others wait.
    pub hand_over: f64,
    /// The greatest cost of acquire and release of one or two permits of three while others wait.
    pub permits: f64,
    /// The number of requests that an idle client sends in a second, such as heartbeats and pings,
    /// if the server counts them too.
    pub idle: f64,
}

/// A lock held by another tool.
#[async_trait]
pub trait ForeignHold: Send + Sync {
    /// Gives it back as that tool would.
    async fn release(self: Box<Self>);
}

/// A resource in the store itself, fenced by the store's condition instead of by a token.
#[async_trait]
pub trait FencedResource: Send + Sync {
    /// Writes in one step of the store with the check that `by` still holds. Returns whether it was
    /// written, or `Err` if the store's client refuses to make a condition for this hold, or does
    /// not know whether the write was executed.
    async fn write(&self, by: &dyn Fenced) -> Result<bool>;

    /// The number of accepted writes.
    async fn written(&self) -> u64;
}

/// The network between one client and its server.
#[async_trait]
pub trait Link: Send + Sync {
    /// Nothing arrives any more in either direction, and neither side is told.
    async fn black_hole(&self);
    /// Requests arrive, replies do not.
    async fn lose_replies(&self);
    /// Connections are closed, and refused.
    async fn cut(&self);
    /// Everything works again.
    async fn heal(&self);
}

/// The way between one client and its server, which may lead to another server of its kind: one
/// that a client of the store has used before, and that has none of the first one's data.
#[async_trait]
pub trait Detour: Send + Sync {
    /// Closes all connections. New ones lead to the other server.
    async fn lead_away(&self);
    /// Closes all connections. New ones lead to the first server.
    async fn lead_back(&self);
    /// A client of the other server.
    async fn elsewhere(&self) -> Arc<dyn Backend>;
}

/// A need of a case beyond clients. The first ones are power over the server, which a harness names
/// if it has it. Those from [`Fair`](Need::Fair) on are abilities that a store is expected to have
/// unless its harness states that it [lacks](Capabilities::lacks) them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Need {
    /// [`Harness::private`].
    Private,
    /// [`Harness::linked_client`].
    Link,
    /// [`Harness::misled_client`].
    Detour,
    /// [`Harness::fenced_client`].
    Fence,
    /// [`Harness::delete_holder`].
    DeleteHolder,
    /// [`Harness::hold_as_another_tool`].
    AnotherTool,
    /// [`Harness::put_junk`].
    Junk,
    /// [`Harness::restart`], on a private world.
    Restart,
    /// [`Harness::wipe`], on a private world, and tokens that survive it.
    Wipe,
    /// [`Harness::footprint`], on a private world.
    Footprint,
    /// [`Harness::contents`], on a private world.
    Contents,
    /// [`Harness::heap`], on a private world.
    Heap,
    /// [`Harness::requests`] and [`Harness::budget`], on a private world.
    Requests,
    /// A release wakes the next waiter by a push.
    PushedWake,
    /// Waiters are served in the order in which they came. (That a waiter is seen is expected without this.)
    Fair,
    /// `Mode::Shared`.
    Shared,
    /// `Mode::Permits`.
    Permits,
    /// A granted `Exclusive` becomes `Shared` in place (S11).
    Downgrade,
    /// Labels of 4096 bytes, of any characters: a candidate's value.
    Values,
    /// Several names in one step (S12).
    AtomicMulti,
    /// A renewal answers for the hold's own entry (S14).
    OwnEntry,
    /// A hold that its client gave back within its `min_hold` lapses without it (S15).
    MinHold,
    /// The tokens of all names can be raised behind a number (S17).
    Raise,
    /// A claim's floor raises the token of its hold (S16).
    Floor,
    /// Completions: work that is done once (S19).
    Once,
}

impl Need {
    /// Returns whether every store is expected to meet it.
    fn is_expected(self) -> bool {
        use Need::{
            AtomicMulti, Downgrade, Fair, Floor, MinHold, Once, OwnEntry, Permits, Raise, Shared,
            Values,
        };
        matches!(
            self,
            Fair | Shared
                | Permits
                | Downgrade
                | Values
                | AtomicMulti
                | OwnEntry
                | MinHold
                | Raise
                | Floor
                | Once
        )
    }
}

/// The abilities of a harness, and those that its store lacks. Each missing one is reported with
/// the reason.
#[derive(Clone, Debug)]
pub struct Capabilities {
    able: Vec<Need>,
    why_not: &'static str,
    lacking: Vec<(Need, &'static str)>,
}

impl Capabilities {
    /// The harness has these kinds of power over the server; `why_not` is the reason why it lacks
    /// the others.
    pub fn new(able: &[Need], why_not: &'static str) -> Capabilities {
        Capabilities {
            able: able.to_vec(),
            why_not,
            lacking: Vec::new(),
        }
    }

    /// The store cannot meet these needs, and why.
    #[must_use]
    pub fn lacks(mut self, needs: &[Need], why: &'static str) -> Capabilities {
        self.lacking.extend(needs.iter().map(|need| (*need, why)));
        self
    }

    /// The reason why a case cannot run, if there is one.
    #[must_use]
    pub fn lack(&self, needs: &[Need]) -> Option<String> {
        let missing: Vec<_> = needs
            .iter()
            .filter_map(|need| self.why_not(*need))
            .collect();
        (!missing.is_empty()).then(|| format!("needs {}", missing.join("; ")))
    }

    /// The needs that the store itself cannot meet, with the reasons.
    pub(crate) fn shortcomings(&self) -> impl Iterator<Item = (Need, &'static str)> {
        self.lacking.iter().copied()
    }

    fn why_not(&self, need: Need) -> Option<String> {
        let unable = !need.is_expected() && !self.able.contains(&need);
        let said = self
            .shortcomings()
            .find(|(lacking, _)| *lacking == need)
            .map(|(_, why)| why);
        said.or_else(|| unable.then_some(self.why_not))
            .map(|why| format!("{need:?}: {why}"))
    }
}
