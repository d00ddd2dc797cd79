//! Tasks that hold one lock in turn, and what they see: throughput, hand-over, fairness, and whether two were ever inside at once.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use leasehold::backend::Moment;
use tokio::sync::Barrier;
use tokio::task::JoinSet;

/// An error of whatever is measured ends its workload.
pub type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// One client of something that locks: raw commands, leasehold, other crates. A clone is the same client, for another task.
///
/// Its futures are its own: nothing is boxed for an operation that is measured.
pub trait Subject: Clone + Send + Sync + 'static {
    /// What stands for a hold.
    type Held: Send;

    /// Takes the lock of this name; waits while somebody has it, where the subject can wait.
    fn acquire(&self, name: &str) -> impl Future<Output = Result<Self::Held>> + Send;

    /// Gives it back, and returns when it is given back.
    fn release(&self, held: Self::Held) -> impl Future<Output = Result<()>> + Send;

    /// One after the other.
    fn cycle(&self, name: &str) -> impl Future<Output = Result<()>> + Send {
        async move { self.release(self.acquire(name).await?).await }
    }
}

/// What all tasks saw.
#[derive(Debug)]
pub struct Turns {
    /// What each saw.
    pub each: Vec<Seen>,
    /// From the begin to the end of the last turn.
    pub elapsed: Duration,
    /// The number of times that two were inside at once.
    pub overlaps: usize,
    /// The number of turns that went to another task than the last.
    pub switches: usize,
}

/// What one task saw.
#[derive(Debug, Default)]
pub struct Seen {
    /// The number of its turns.
    pub turns: usize,
    /// The number of its turns that began within the window.
    pub in_time: usize,
    /// From each request to the hold.
    pub waits: Vec<Duration>,
    /// From the begin of the release before to the hold, where it was waiting already.
    pub hand_overs: Vec<Duration>,
}

/// The state that all tasks use. Only the lock protects it.
struct Section {
    window: Duration,
    length: Duration,
    begin: Barrier,
    inside: AtomicBool,
    overlaps: AtomicUsize,
    switches: AtomicUsize,
    /// The task that was inside last, counted from 1.
    last: AtomicUsize,
    /// When the last release began, in nanoseconds; zero before the first.
    released: AtomicU64,
}

/// So many tasks of these clients in turn, each of which asks again as soon as it has released the lock. `section`: for how long
/// each holds it. None is left behind when the window ends: each has its last turn.
///
/// # Errors
/// The first of a subject.
///
/// # Cancel safety
/// Dropped midway, the tasks end where they are.
pub async fn turns<S: Subject>(
    clients: &[S],
    name: &str,
    tasks: usize,
    section: Duration,
    window: Duration,
) -> Result<Turns> {
    let name: Arc<str> = name.into();
    let section = Arc::new(Section {
        window,
        length: section,
        begin: Barrier::new(tasks),
        inside: AtomicBool::default(),
        overlaps: AtomicUsize::default(),
        switches: AtomicUsize::default(),
        last: AtomicUsize::default(),
        released: AtomicU64::default(),
    });
    let begin = Moment::now();
    let mut all = JoinSet::new();
    for task in 0..tasks {
        let client = clients[task % clients.len()].clone();
        let section = section.clone();
        let name = name.clone();
        all.spawn(async move { section.compete(task + 1, &client, &name).await });
    }
    let mut each = Vec::with_capacity(tasks);
    while let Some(seen) = all.join_next().await {
        each.push(seen??);
    }
    Ok(Turns {
        each,
        elapsed: Moment::now().since(begin),
        overlaps: section.overlaps.load(Ordering::Relaxed),
        switches: section.switches.load(Ordering::Relaxed),
    })
}

impl Section {
    async fn compete<S: Subject>(&self, me: usize, client: &S, name: &str) -> Result<Seen> {
        let mut seen = Seen::default();
        self.begin.wait().await;
        let begin = Moment::now();
        while Moment::now().since(begin) < self.window {
            let asked = Moment::now();
            let guard = client.acquire(name).await?;
            let held = Moment::now();
            if self.inside.swap(true, Ordering::SeqCst) {
                self.overlaps.fetch_add(1, Ordering::SeqCst);
            }
            if self.last.swap(me, Ordering::SeqCst) != me {
                self.switches.fetch_add(1, Ordering::SeqCst);
            }
            let released = Moment::from_nanos(self.released.load(Ordering::SeqCst));
            // A hand-over to a task that was waiting when the release began.
            if released > asked {
                seen.hand_overs.push(held.since(released));
            }
            seen.waits.push(held.since(asked));
            seen.turns += 1;
            seen.in_time += usize::from(held.since(begin) < self.window);
            if !self.length.is_zero() {
                tokio::time::sleep(self.length).await;
            }
            self.inside.store(false, Ordering::SeqCst);
            self.released
                .store(Moment::now().as_nanos(), Ordering::SeqCst);
            client.release(guard).await?;
        }
        Ok(seen)
    }
}
