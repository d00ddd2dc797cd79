//! The stores of which there are worlds.

/// A store, with servers in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Queues with leases, written for this: what is simulated is core.
    Simple,
    /// Redis, on one server.
    Redis,
    /// Redlock, on three servers.
    Redlock,
    /// Redlock, on five.
    Redlock5,
}

/// Faults of servers that not every store has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Own {
    /// At the end of the fault the server has again what it had at its beginning.
    Restore,
    /// Its clock is ahead by so many nanoseconds from now on.
    ClockStep(i64),
    /// It knows no script any more.
    ForgetScripts,
    /// It has no room for more data.
    Full,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 4] = [Kind::Simple, Kind::Redis, Kind::Redlock, Kind::Redlock5];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Kind::Simple => "simple",
            Kind::Redis => "redis",
            Kind::Redlock => "redlock",
            Kind::Redlock5 => "redlock-5",
        }
    }

    /// The store of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|store| store.name() == name)
    }

    /// How many servers there are.
    pub(crate) fn servers(self) -> usize {
        match self {
            Kind::Simple | Kind::Redis => 1,
            Kind::Redlock => 3,
            Kind::Redlock5 => 5,
        }
    }

    /// Whether there are semaphores and fair waiters.
    pub(crate) fn is_complete(self) -> bool {
        !matches!(self, Kind::Redlock | Kind::Redlock5)
    }

    /// Whether leaders are observed.
    pub(crate) fn observes(self) -> bool {
        self.is_complete()
    }

    /// The faults of its servers that others do not have.
    pub(crate) fn own(self) -> &'static [Own] {
        match self {
            Kind::Simple => &[],
            Kind::Redis | Kind::Redlock | Kind::Redlock5 => {
                &[Own::Restore, Own::ClockStep(0), Own::ForgetScripts, Own::ForgetScripts, Own::Full]
            }
        }
    }
}
