//! A process that stands still for longer than its session lasts, and whose session lives on: its
//! server was away meanwhile. The client crate then answers by its own clock that the session has
//! expired. ZooKeeper has not said so, and keeps the session's entries.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Wake, Waker};
use std::thread;

use crate::common::*;
use futures_util::future::maybe_done;
use leasehold_core::backend::{Backend, Claimed};
use leasehold_testbed::verbs::lease;
use tokio::runtime::Builder;
use tokio::sync::{Notify, oneshot};

/// It may be polled after its end, too.
type Release = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Begins a release as soon as a request that is under way is answered: when the client crate says
/// that its connection is dead, and has not given the session up yet, or does so. So the release is
/// never sent.
struct ReleaseThen {
    release: Mutex<Release>,
    begun: Notify,
}

impl Wake for ReleaseThen {
    fn wake(self: Arc<Self>) {
        let _ = self
            .release
            .lock()
            .unwrap()
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()));
        self.begun.notify_one();
    }
}

#[tokio::test]
async fn a_release_that_was_not_sent_is_not_forgotten() {
    limited(async {
        let server = server().await;
        let url = format!("zookeeper://{}/test?timeout=60000", server.addr());
        let (claim, next) = (fair("a", SHORT), fair("a", SHORT));
        let ((stands, is_standing), (end, ends)) = (oneshot::channel(), oneshot::channel::<()>());
        let (go_on, goes_on) = mpsc::channel();
        let run = async move {
            let client = connected(&url).await;
            granted(&client, &claim).await;
            let lease = [lease(&claim, None)];
            let release = {
                let client = client.clone();
                maybe_done(async move { client.release(&claim, None).await })
            };
            let release: Mutex<Release> = Mutex::new(Box::pin(release));
            let then = Arc::new(ReleaseThen {
                release,
                begun: Notify::new(),
            });
            let mut under_way = Box::pin(client.renew(&lease));
            assert!(
                under_way
                    .as_mut()
                    .poll(&mut Context::from_waker(&then.clone().into()))
                    .is_pending()
            );
            stands.send(()).unwrap();
            goes_on.recv().unwrap(); // the client's whole runtime stands still
            then.begun.notified().await;
            drop(under_way);
            // It says that the session has expired, or on a slow machine that all is done: then the
            // session has.
            poll_fn(|cx| then.release.lock().unwrap().as_mut().poll(cx)).await;
            let _ = ends.await;
        };
        let running = thread::spawn(|| {
            Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap()
                .block_on(run);
        });
        is_standing.await.unwrap();
        server.kill().await.unwrap();
        // The client crate takes a session for expired after seven fifths of its timeout.
        tokio::time::sleep(SHORT * 3 / 2).await;
        server.start_again().await.unwrap();
        go_on.send(()).unwrap();
        let other = client(&server).await;
        until(|| async { matches!(other.claim(&next).await, Ok(Claimed::Granted(_))) }).await;
        drop(end);
        running.join().unwrap();
    })
    .await;
}
