//! Shared answers: calls that need a current answer to the same request share one request that is
//! sent after they asked, and its error, too.
//!
//! This is a second way beside a request for each call, kept for its figure: 1,500 tasks of one
//! client stood in a queue after 1.1 s, and after 5.3 s when each read the whole queue. The user is
//! a server process in which many tasks want one lock at the same moment.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use leasehold_core::support::locked;

use crate::client::connection::Client;
use crate::client::single_flight::SingleFlight;
use crate::error::Answer;

/// The answers by their keys; each is kept as long as a call uses it.
pub(crate) struct SharedAnswers<T>(Mutex<HashMap<String, Weak<Answers<T>>>>);

/// The latest answer, and the number of calls that had asked before it was requested.
type Latest<T> = Option<(u64, Answer<Arc<T>>)>;

/// The answers to one request. Calls that come while a request is under way wait for the next one.
struct Answers<T> {
    /// The connection of the requests, which are executed in their order.
    client: Client,
    /// The number of calls that have asked.
    asked: AtomicU64,
    latest: Mutex<Latest<T>>,
    turns: SingleFlight,
}

impl<T> SharedAnswers<T> {
    /// Returns the answer of `request`, or of another one of this key that was sent over this
    /// connection after this call began. A request that has not been answered for `age` is not
    /// waited for.
    pub(crate) async fn get(
        &self,
        client: &Client,
        key: &str,
        age: Duration,
        request: impl AsyncFnOnce() -> Answer<T>,
    ) -> Answer<Arc<T>> {
        let answers = self.answers(client, key);
        let mine = answers.asked.fetch_add(1, Ordering::SeqCst) + 1;
        let answered = || {
            locked(&answers.latest)
                .as_ref()
                .filter(|(asked, _)| *asked >= mine)
                .map(|(_, it)| it.clone())
        };
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
        let known = all
            .get(key)
            .and_then(Weak::upgrade)
            .filter(|known| known.client.is_same(client));
        known.unwrap_or_else(|| {
            if all.len() == all.capacity() {
                // It then has room for as many again, so each entry is checked a few times at most.
                all.retain(|_, used| used.strong_count() > 0);
                let used = all.len();
                all.reserve(used);
            }
            let new = Arc::new(Answers {
                client: client.clone(),
                asked: 0.into(),
                latest: Mutex::default(),
                turns: SingleFlight::default(),
            });
            all.insert(key.to_owned(), Arc::downgrade(&new));
            new
        })
    }
}

impl<T> Default for SharedAnswers<T> {
    fn default() -> SharedAnswers<T> {
        SharedAnswers(Mutex::default())
    }
}
