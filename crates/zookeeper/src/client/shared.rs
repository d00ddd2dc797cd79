//! One answer for many: those who need what a request answers now share one that was sent after they asked, also if it is an error.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use leasehold_core::support::locked;
use tokio::sync::Mutex as Turn;

use crate::client::connection::Client;
use crate::error::Answer;

/// The answers by their keys, each as long as somebody uses it.
pub(crate) struct Shared<T>(Mutex<HashMap<String, Weak<Answers<T>>>>);

/// The latest answer, and how many had asked before it was requested.
type Latest<T> = Option<(u64, Answer<Arc<T>>)>;

/// While a request is under way, all who come meanwhile wait for the next one.
struct Answers<T> {
    /// One connection's: its requests are executed in their order.
    client: Client,
    /// How many have asked.
    asked: AtomicU64,
    latest: Turn<Latest<T>>,
}

impl<T> Shared<T> {
    /// What `request` answers, or another one of the same key that was sent over this connection after this call began.
    pub(crate) async fn get(
        &self,
        client: &Client,
        key: &str,
        request: impl AsyncFnOnce() -> Answer<T>,
    ) -> Answer<Arc<T>> {
        let answers = self.answers(client, key);
        let mine = answers.asked.fetch_add(1, Ordering::SeqCst) + 1;
        let mut latest = answers.latest.lock().await;
        if let Some((asked, answer)) = &*latest
            && *asked >= mine
        {
            return answer.clone();
        }
        let asked = answers.asked.load(Ordering::SeqCst);
        let answer = request().await.map(Arc::new);
        *latest = Some((asked, answer.clone()));
        answer
    }

    fn answers(&self, client: &Client, key: &str) -> Arc<Answers<T>> {
        let mut all = locked(&self.0);
        let known = all.get(key).and_then(Weak::upgrade).filter(|known| known.client.is_same(client));
        known.unwrap_or_else(|| {
            if all.len() == all.capacity() {
                // It has room for as many again then, so each entry is looked at a few times at most.
                all.retain(|_, used| used.strong_count() > 0);
                let used = all.len();
                all.reserve(used);
            }
            let new = Arc::new(Answers { client: client.clone(), asked: 0.into(), latest: Turn::default() });
            all.insert(key.to_owned(), Arc::downgrade(&new));
            new
        })
    }
}

impl<T> Default for Shared<T> {
    fn default() -> Shared<T> {
        Shared(Mutex::default())
    }
}
