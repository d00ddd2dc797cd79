//! One answer for many: those who need what a request answers now share one that was sent after they asked, also if it is an error.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use leasehold_core::support::locked;

use crate::client::connection::Client;
use crate::client::turns::Turns;
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
    latest: Mutex<Latest<T>>,
    turns: Turns,
}

impl<T> Shared<T> {
    /// What `request` answers, or another one of the same key that was sent over this connection after this call began. One that has not
    /// been answered for `age` is waited for no longer.
    pub(crate) async fn get(
        &self,
        client: &Client,
        key: &str,
        age: Duration,
        request: impl AsyncFnOnce() -> Answer<T>,
    ) -> Answer<Arc<T>> {
        let answers = self.answers(client, key);
        let mine = answers.asked.fetch_add(1, Ordering::SeqCst) + 1;
        let answered =
            || locked(&answers.latest).as_ref().filter(|(asked, _)| *asked >= mine).map(|(_, it)| it.clone());
        let _turn = match answers.turns.unless(age, answered).await {
            Ok(answer) => return answer,
            Err(turn) => turn,
        };
        let asked = answers.asked.load(Ordering::SeqCst);
        let answer = request().await.map(Arc::new);
        *locked(&answers.latest) = Some((asked, answer.clone()));
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
            let new = Arc::new(Answers {
                client: client.clone(),
                asked: 0.into(),
                latest: Mutex::default(),
                turns: Turns::default(),
            });
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
