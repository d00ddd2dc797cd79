//! Work in the background of a store's client that any runtime which uses the client can do.
//!
//! A program may have several runtimes, and a task lives in one of them. That runtime may end, and
//! it may stop without ending: its thread is blocked, or it is between two calls of `block_on`.
//! Nothing notifies the others of the second.
//!
//! Algorithm:
//! 1. Each runtime that uses the client has one task, its *member* ([`Background::here`]). The first
//!    member does the work, and the others stand by.
//! 2. A member that stands by asks the working one for a sign every [`LATE`]. Each member answers
//!    whenever its runtime is driven.
//! 3. If there is no answer within [`LATE`], or the runtime has ended, a member that stands by begins
//!    the work anew in its own runtime. The former one drops its work when it is driven again.
//!
//! For a moment two members may work, so the work must allow that. A client that is used in one
//! runtime only asks nothing and has no timer.

use std::fmt;
use std::future::{Future, pending};
use std::mem::replace;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::runtime::{Handle, Id};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;

use crate::backend::clock::Moment;
use crate::support::sync::{Mutex, locked};

/// The time after which a runtime that gives no sign is taken for not driven, and the interval at
/// which it is asked.
const LATE: Duration = Duration::from_millis(250);

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A piece of work, and the runtimes that can do it. The work ends when this is dropped.
pub struct Background(Arc<Inner>);

struct Inner {
    work: Box<dyn Fn(bool) -> Work + Send + Sync>,
    members: Mutex<Vec<Home>>,
    state: watch::Sender<State>,
}

#[derive(Default)]
struct State {
    /// The member that does the work.
    works: Option<Home>,
    /// The work was begun before.
    begun: bool,
    /// The work is over for good.
    ended: bool,
}

impl Background {
    /// `work` begins the work. It is called again, with `true`, whenever another runtime takes over.
    /// The work does not begin before the first call of [`here`](Background::here), and ends for good
    /// when it completes.
    pub fn new<F>(work: impl Fn(bool) -> F + Send + Sync + 'static) -> Background
    where
        F: Future<Output = ()> + Send + 'static,
    {
        Background(Arc::new(Inner {
            work: Box::new(move |anew| Box::pin(work(anew))),
            members: Mutex::default(),
            state: watch::Sender::default(),
        }))
    }

    /// Notes that this runtime uses the client: it does the work, or stands by. Each request is to
    /// call this. Nothing happens outside of a runtime, and after the end.
    pub fn here(&self) {
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        let mut members = locked(&self.0.members);
        let is_known = members
            .iter()
            .any(|home| home.runtime == runtime.id() && home.lives());
        if is_known || self.0.state.borrow().ended {
            return;
        }
        let (home, signs) = Home::new(runtime.id());
        let member = Member {
            shared: Arc::downgrade(&self.0),
            home: home.clone(),
            state: self.0.state.subscribe(),
        };
        let ended: Vec<_> = members.extract_if(.., |home| !home.lives()).collect();
        members.push(home);
        drop(members);
        drop(ended);
        runtime.spawn(signs.during(member.serve()));
    }

    /// Ends the work for good.
    pub fn end(&self) {
        self.0.end_if(|_| true);
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.end();
    }
}

impl fmt::Debug for Background {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Background")
    }
}

impl Inner {
    fn end_if(&self, ends: impl FnOnce(&State) -> bool) {
        self.state.send_if_modified(|state| {
            let ends = ends(state);
            state.ended |= ends;
            ends
        });
    }

    /// Notes that the work begins, and returns whether it was begun before.
    fn begins(&self) -> bool {
        let mut before = false;
        self.state.send_if_modified(|state| {
            before = replace(&mut state.begun, true);
            false
        });
        before
    }

    /// Makes `next` the member that works, unless there is another one than `former` that lives.
    fn take_over(&self, next: &Home, former: Option<&Home>) {
        let mut before = None;
        self.state.send_if_modified(|state| {
            let works = state.works.as_ref().filter(|works| works.lives());
            let is_free = works.is_none_or(|works| former.is_some_and(|former| works.is(former)));
            if is_free {
                before = state.works.replace(next.clone());
            }
            is_free
        });
        // Dropped when the state is not locked any more.
        drop(before);
    }
}

/// A notification for the work in the background. Each listener sees it, also if an earlier one is
/// in a runtime that is not driven, and a listener that comes later sees the earlier ones as one.
#[derive(Debug)]
pub struct Signal {
    sender: watch::Sender<()>,
    none_seen: watch::Receiver<()>,
}

impl Default for Signal {
    fn default() -> Signal {
        let (sender, none_seen) = watch::channel(());
        Signal { sender, none_seen }
    }
}

impl Signal {
    /// Notifies the listeners.
    pub fn notify(&self) {
        self.sender.send_replace(());
    }

    /// Listens: `changed` completes for a notification that this receiver has not seen, the earlier
    /// ones included. It fails only after the signal was dropped.
    #[must_use]
    pub fn listen(&self) -> watch::Receiver<()> {
        self.none_seen.clone()
    }
}

/// One runtime's task.
struct Member {
    shared: Weak<Inner>,
    home: Home,
    state: watch::Receiver<State>,
}

impl Member {
    /// Does the work, or stands by, until the end.
    async fn serve(mut self) {
        loop {
            let Some(shared) = self.shared.upgrade() else {
                return;
            };
            shared.take_over(&self.home, None);
            let (ended, works) = {
                let state = self.state.borrow_and_update();
                (state.ended, state.works.clone())
            };
            let Some(works) = works.filter(|_| !ended) else {
                return;
            };
            let work = works.is(&self.home).then(|| (shared.work)(shared.begins()));
            drop(shared);
            let state = &mut self.state;
            let changed = async {
                let changes = state.wait_for(|state| {
                    state.ended || !state.works.as_ref().is_some_and(|now| now.is(&works))
                });
                // The work may be the last owner of the background, whose end locks the state.
                // The lock in this answer therefore ends before the work is dropped.
                drop(changes.await);
            };
            match work {
                Some(work) => {
                    tokio::select! {
                        biased;
                        () = changed => {}
                        () = work => {
                            if let Some(shared) = self.shared.upgrade() {
                                shared.end_if(|state| state.works.as_ref().is_some_and(|now| now.is(&works)));
                            }
                        }
                    }
                }
                None => {
                    let left = tokio::select! {
                        biased;
                        () = changed => false,
                        () = works.left() => true,
                    };
                    if left && let Some(shared) = self.shared.upgrade() {
                        shared.take_over(&self.home, Some(&works));
                    }
                }
            }
        }
    }
}

/// A task in a runtime that shows whether the runtime is driven: the home of a connection, or of
/// work.
#[derive(Clone)]
pub struct Home {
    runtime: Id,
    asks: UnboundedSender<oneshot::Sender<()>>,
}

/// The signs of life that are given in a home, in the order in which they are asked for.
struct Signs(UnboundedReceiver<oneshot::Sender<()>>);

impl Signs {
    /// Gives a sign whenever one is asked for, until nobody can ask any more.
    async fn give(&mut self) {
        while let Some(asked) = self.0.recv().await {
            // Whoever waits no longer needs none.
            let _ = asked.send(());
        }
    }

    /// Gives signs while this work is done.
    async fn during<T>(mut self, work: impl Future<Output = T>) -> T {
        let give = async {
            self.give().await;
            pending().await
        };
        tokio::select! {
            biased;
            done = give => done,
            done = work => done,
        }
    }
}

impl Home {
    fn new(runtime: Id) -> (Home, Signs) {
        let (asks, asked) = unbounded_channel();
        (Home { runtime, asks }, Signs(asked))
    }

    /// The home of a connection that is made in this runtime: a task there, until the last copy of
    /// this value is dropped. `None` outside of a runtime.
    #[must_use]
    pub fn here() -> Option<Home> {
        let runtime = Handle::try_current().ok()?;
        let (home, mut signs) = Home::new(runtime.id());
        runtime.spawn(async move { signs.give().await });
        Some(home)
    }

    /// Work that a task of this runtime is to do, and the home of that work. `None` outside of a
    /// runtime.
    pub fn of<T>(work: impl Future<Output = T>) -> Option<(Home, impl Future<Output = T>)> {
        let runtime = Handle::try_current().ok()?;
        let (home, signs) = Home::new(runtime.id());
        Some((home, signs.during(work)))
    }

    /// Returns whether the caller runs in this runtime.
    #[must_use]
    pub fn is_here(&self) -> bool {
        Handle::try_current().is_ok_and(|here| here.id() == self.runtime)
    }

    /// Returns whether the runtime is driven. It has a quarter of a second to give a sign.
    pub async fn is_driven(&self) -> bool {
        loop {
            if self.is_here() {
                return true;
            }
            let (asked, sign) = oneshot::channel();
            if self.asks.send(asked).is_err() {
                return false;
            }
            let began = Moment::now();
            match timeout(LATE, sign).await {
                Ok(sign) => return sign.is_ok(),
                // The caller's own runtime stood still, too, and perhaps the whole machine.
                Err(_) if Moment::now().since(began) > LATE * 2 => {}
                Err(_) => return false,
            }
        }
    }

    /// Completes when the runtime has ended, or is not driven any more: within half a
    /// second.
    pub async fn left(&self) {
        while self.is_driven().await {
            if self.is_here() {
                return pending().await;
            }
            drop(timeout(LATE, self.asks.closed()).await);
        }
    }

    /// Returns whether its member exists: its runtime has not ended.
    fn lives(&self) -> bool {
        !self.asks.is_closed()
    }

    fn is(&self, other: &Home) -> bool {
        self.asks.same_channel(&other.asks)
    }
}

impl fmt::Debug for Home {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Home({})", self.runtime)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;
    use std::sync::mpsc::{Receiver, channel};
    use std::thread;

    use tokio::runtime::{Builder, Runtime};
    use tokio::time::sleep;

    use super::*;

    fn runtime() -> Runtime {
        Builder::new_current_thread().enable_all().build().unwrap()
    }

    /// Work that reports each of its beginnings: the runtime, and whether it was begun before.
    fn reported() -> (Background, Receiver<(Id, bool)>) {
        let (begins, begun) = channel();
        let work = move |anew| {
            let begins = begins.clone();
            async move {
                let _ = begins.send((Handle::current().id(), anew));
                pending::<()>().await;
            }
        };
        (Background::new(work), begun)
    }

    #[test]
    fn one_runtime_works_as_long_as_it_is_driven() {
        let [first, second] = [(); 2].map(|()| {
            let mut builder = Builder::new_multi_thread();
            builder.worker_threads(1).enable_all().build().unwrap()
        });
        let (background, begun) = reported();
        first.block_on(async { background.here() });
        assert_eq!(begun.recv().ok(), Some((first.handle().id(), false)));
        for runtime in [&second, &first] {
            runtime.block_on(async { background.here() });
        }
        second.block_on(async { sleep(LATE * 4).await });
        assert!(begun.try_recv().is_err());
    }

    #[test]
    fn another_runtime_works_when_the_first_one_ends_or_is_not_driven() {
        for ends in [false, true] {
            let (first, second) = (runtime(), runtime());
            let (background, begun) = reported();
            let home = first.block_on(async {
                background.here();
                let home = locked(&background.0.members)[0].clone();
                assert!(home.is_driven().await);
                tokio::task::yield_now().await;
                home
            });
            second.block_on(async { background.here() });
            let first = (!ends).then_some(first);
            second.block_on(async {
                home.left().await;
                assert!(!home.is_driven().await);
                // The member in this runtime hears of it at the same time.
                sleep(LATE * 2).await;
            });
            assert!(!begun.recv().unwrap().1);
            assert_eq!(begun.try_recv().ok(), Some((second.handle().id(), true)));
            // The first one drops its work, and stands by for the second.
            if let Some(first) = first {
                drop(second);
                first.block_on(async { sleep(LATE).await });
                assert_eq!(begun.try_recv().ok(), Some((first.handle().id(), true)));
            }
        }
    }

    /// The work of the first runtime keeps the owner of the background alive, and so ends the
    /// background when it is dropped.
    #[test]
    fn work_that_is_taken_over_may_be_the_last_owner() {
        let (first, second) = (runtime(), runtime());
        let owner: Arc<OnceLock<Background>> = Arc::default();
        let weak = Arc::downgrade(&owner);
        let (begins, begun) = channel();
        let background = owner.get_or_init(|| {
            Background::new(move |anew| {
                let owner = weak.upgrade().filter(|_| !anew);
                let begins = begins.clone();
                async move {
                    let _owner = owner;
                    let _ = begins.send(anew);
                    pending::<()>().await;
                }
            })
        });
        first.block_on(async {
            background.here();
            tokio::task::yield_now().await;
        });
        second.block_on(async {
            background.here();
            sleep(LATE * 4).await;
        });
        assert_eq!(begun.try_iter().collect::<Vec<_>>(), [false, true]);
        drop(owner);
        let (done, is_done) = channel();
        thread::spawn(move || {
            first.block_on(async { sleep(LATE).await });
            let _ = done.send(());
        });
        assert!(
            is_done.recv_timeout(LATE * 40).is_ok(),
            "the first runtime stands still"
        );
    }

    #[test]
    fn the_end_leaves_no_task() {
        for drops in [false, true] {
            let runtime = runtime();
            let (background, begun) = reported();
            runtime.block_on(async {
                background.here();
                tokio::task::yield_now().await;
                assert!(begun.try_recv().is_ok());
                if drops {
                    drop(background);
                } else {
                    background.end();
                }
                while Handle::current().metrics().num_alive_tasks() > 0 {
                    tokio::task::yield_now().await;
                }
            });
        }
    }

    #[test]
    fn each_listener_hears_a_signal() {
        let (first, second) = (runtime(), runtime());
        let signal = Arc::new(Signal::default());
        let mut early = signal.listen();
        first.spawn(async move { early.changed().await });
        first.block_on(tokio::task::yield_now());
        signal.notify();
        second.block_on(async {
            let mut late = signal.listen();
            late.changed().await.unwrap();
            assert!(!late.has_changed().unwrap());
        });
    }
}
