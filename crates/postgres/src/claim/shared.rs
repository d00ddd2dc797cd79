//! The state that the verbs share: the connections, the statements, the notifications.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_core::ErrorKind::{Ambiguous, Denied, Invalid, OtherStore, Unavailable, Unsupported};
use leasehold_core::backend::{ClaimId, Notifier};
use leasehold_core::support::{Background, Signal, locked};
use leasehold_core::{Connections, Error, Result};
use tokio::time::{MissedTickBehavior, interval};

use crate::client::answer::Row;
use crate::client::identity::DatabaseIdentity;
use crate::client::install::{install, prepare, refusal, why_refused};
use crate::client::listener::{self, Hearing, Listener};
use crate::client::notify_queue::NotifyQueue;
use crate::client::pool::Pool;
use crate::client::request::Request;
use crate::config::{Config, Listen};
use crate::entry::{get, millis};
use crate::error::Failure;
use crate::observe::Observers;
use crate::pool::ConnectionPool;
use crate::scripts::{STARTED, answer_of, rows_of};

/// The longest time that a verb waits for a row.
const PATIENCE: Duration = Duration::from_secs(2);
/// The interval between sweeps, and the time that a name without places is kept at least.
const SWEEP: Duration = Duration::from_secs(15);
/// The number of names that one request sweeps away at most.
const SWEPT: i32 = 1_000;

/// One client of the store.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) statements: Statements,
    pub(crate) pool: Arc<Pool>,
    notify_queue: Arc<NotifyQueue>,
    pub(crate) notifier: Notifier,
    /// The id of this client, which is also the name of its channel while notifications arrive.
    pub(crate) client: String,
    pub(crate) hearing: Arc<Hearing>,
    warnings: Vec<String>,
    released: Arc<Signal>,
    pub(crate) observers: Arc<Observers>,
    /// Listens, notifies, observes and sweeps, in any runtime that uses the client.
    background: Background,
}

/// The SQL of all requests.
pub(crate) struct Statements {
    pub(crate) claim: Arc<str>,
    pub(crate) once: Arc<str>,
    pub(crate) claim_all: Arc<str>,
    pub(crate) renew: Arc<str>,
    pub(crate) release: Arc<str>,
    pub(crate) release_after: Arc<str>,
    pub(crate) evict: Arc<str>,
    pub(crate) inspect: Arc<str>,
    pub(crate) list: Arc<str>,
    pub(crate) observe: Arc<str>,
    sweep: Arc<str>,
    pub(crate) mark: Arc<str>,
    pub(crate) raise: Arc<str>,
    pub(crate) complete: Arc<str>,
    pub(crate) recorded: Arc<str>,
    pub(crate) completion: Arc<str>,
    pub(crate) completions: Arc<str>,
    pub(crate) forget: Arc<str>,
}

impl Statements {
    fn new(schema: &str) -> Statements {
        let one = |function, parameters| answer_of(schema, function, parameters).into();
        let rows = |function, parameters| rows_of(schema, function, parameters).into();
        Statements {
            claim: one("claim_1", 13),
            once: one("once_1", 10),
            claim_all: rows("claim_all_1", 9),
            renew: rows("renew_1", 5),
            release: one("release_1", 3),
            release_after: one("release_after_1", 4),
            evict: one("evict_1", 3),
            inspect: rows("inspect_1", 1),
            list: rows("list_1", 3),
            observe: format!("SELECT {schema}.observe_1($1, $2, $3)").into(),
            sweep: format!("SELECT {schema}.sweep_1($1, $2)").into(),
            mark: rows("mark_1", 0),
            raise: rows("raise_1", 2),
            complete: one("complete_1", 8),
            recorded: one("recorded_1", 4),
            completion: rows("completion_1", 1),
            completions: rows("completions_1", 3),
            forget: rows("forget_1", 3),
        }
    }
}

impl Shared {
    /// Connects, or borrows connections from a pool of the program.
    pub(crate) async fn connect(
        mut config: Config,
        lender: Option<Arc<dyn ConnectionPool>>,
    ) -> Result<Arc<Shared>> {
        let identity = DatabaseIdentity::pinned(config.store_id.clone(), &config.schema);
        let identity = Arc::new(identity);
        config.server.identity = identity.clone();
        if let Listen::At(server) = &mut config.listen {
            server.identity = identity;
        }
        let notifier = Notifier::new();
        let limit = config.timeout;
        let pool = Pool::new(&config, lender, &notifier);
        let link = pool.take().await?;
        let mut warnings = config.warnings();
        warnings.extend(prepare(&link, &config).await?);
        drop(link);
        let client = format!("lh_{}", ClaimId::fresh());
        let at = match &config.listen {
            Listen::Same => Some(&config.server),
            Listen::At(server) => Some(&**server),
            Listen::Off => None,
        };
        let times = (limit, patience(&config));
        let listener = at.map(|at| Listener::new(at, &client, times, &pool, &notifier));
        let opened = match &listener {
            None => Ok(None),
            Some(listener) => listener.open().await,
        };
        let opened = match opened {
            // An error that an operator has to mend is reported at once. Other errors are not,
            // because notifications are optional.
            Err(e) if matches!(e.kind(), Invalid | Denied | Unsupported) => return Err(e),
            opened => opened,
        };
        let hearing = match &listener {
            Some(listener) => listener.hearing().clone(),
            None => Arc::new(Hearing::none("")),
        };
        let statements = Statements::new(&config.schema);
        let notify_queue = NotifyQueue::new(&pool, patience(&config));
        let released = Arc::<Signal>::default();
        let observers = Arc::new(Observers {
            pool: pool.clone(),
            hearing: hearing.clone(),
            notifier: notifier.clone(),
            statement: statements.observe.clone(),
            channel: client.clone(),
            all: Mutex::default(),
            added: Signal::default(),
        });
        let background = {
            let pool = pool.clone();
            let notify_queue = notify_queue.clone();
            let released = released.clone();
            let observers = observers.clone();
            let sweep = statements.sweep.clone();
            let opened = Mutex::new(Some(opened));
            Background::new(move |_| {
                let pool = pool.clone();
                let notify_queue = notify_queue.clone();
                let released = released.clone();
                let observers = observers.clone();
                let sweep = sweep.clone();
                let listener = listener.clone();
                let opened = locked(&opened).take();
                async move {
                    let listening = async {
                        if let Some(listener) = listener {
                            listener.run(opened).await;
                        }
                    };
                    tokio::join!(
                        listening,
                        notify_queue.run(),
                        observers.run(),
                        sweeping(&sweep, &pool, &released),
                        pool.tidy()
                    );
                }
            })
        };
        background.here();
        Ok(Arc::new(Shared {
            statements,
            notify_queue,
            pool,
            notifier,
            client,
            hearing,
            warnings,
            released,
            observers,
            background,
            config,
        }))
    }

    /// Makes this runtime do the work in the background if no other does.
    pub(crate) fn here(&self) {
        self.background.here();
    }

    /// The channel of this client; empty while notifications do not arrive.
    pub(crate) fn channel(&self) -> &str {
        if self.hearing.arrive() {
            &self.client
        } else {
            ""
        }
    }

    /// The warnings for an operator that apply now.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let trouble = self.hearing.trouble();
        let unknown = self.config.server.identity.warning();
        let of_sessions = self.pool.warning().map(str::to_owned);
        // The first session may have been a reason for it at the start.
        let of_sessions = of_sessions.filter(|warning| !self.warnings.contains(warning));
        let now = trouble.into_iter().chain(unknown).chain(of_sessions);
        self.warnings.iter().cloned().chain(now).collect()
    }

    /// The connections of this client in each runtime, and one for notifications.
    pub(crate) fn connections(&self) -> Connections {
        let listens = usize::from(!matches!(self.config.listen, Listen::Off));
        Connections {
            at_most: self.pool.at_most() + listens,
            idle: self.pool.at_rest() + listens,
        }
    }

    /// Fails if the client was closed.
    pub(crate) fn open(&self) -> Result<()> {
        if self.pool.is_closed() {
            Err(Error::closed())
        } else {
            Ok(())
        }
    }

    /// Sends the notifications that are still due, and closes the client.
    pub(crate) async fn close(&self) {
        self.notify_queue.send().await;
        self.shut();
    }

    pub(crate) fn shut(&self) {
        self.pool.close();
        self.background.end();
    }

    /// The time that a verb may wait for a row, in milliseconds.
    pub(crate) fn patience(&self) -> i32 {
        patience(&self.config)
    }

    /// Sends a request of a verb. If the schema is missing, it is installed again, and the request
    /// fails as `Unavailable`.
    pub(crate) async fn call(&self, request: Request) -> Result<Vec<Row>, Failure> {
        self.here();
        let request = request.asking(&self.config.schema);
        let sql = request.sql.clone();
        let answer = self.pool.call(request).await;
        self.explained(&sql, answer).await
    }

    /// Sends a renewal, which waits for no other request.
    pub(crate) async fn call_renewal(&self, request: Request) -> Result<Vec<Row>, Failure> {
        self.here();
        let request = request.asking(&self.config.schema);
        let sql = request.sql.clone();
        let answer = self.pool.renew(request).await;
        self.explained(&sql, answer).await
    }

    /// Handles the answer to a verb: takes it only from this store, installs the schema again if it
    /// is missing, and names the right in the error if one is missing.
    async fn explained(
        &self,
        sql: &str,
        answer: Result<Vec<Row>, Failure>,
    ) -> Result<Vec<Row>, Failure> {
        let failure = match &answer {
            Ok(rows) => return self.is_ours(rows).await.and(answer),
            Err(failure) => failure,
        };
        if failure.forbidden {
            let why = self.why_refused(sql).await;
            return why.map_or(answer, |e| Err(Failure::of(&e)));
        }
        if !failure.missing {
            return answer;
        }
        let link = self.pool.take().await?;
        // A pooler may lead to another database, where it was never there.
        let confirmed = link.confirm(self.config.timeout).await;
        confirmed.map_err(|e| Failure::of(&e))?;
        if !self.config.install {
            return answer;
        }
        install(&link, &self.config, false)
            .await
            .map_err(|e| Failure::of(&e))?;
        Err(Failure::new(
            Unavailable,
            "the schema was missing, and has been installed anew",
        ))
    }

    /// Fails if the answer is of another server than the one that has said who it is, as behind a
    /// pooler that was pointed elsewhere, unless that says that it is this store.
    async fn is_ours(&self, rows: &[Row]) -> Result<(), Failure> {
        let identity = &self.config.server.identity;
        let started = rows.first().map(|row| row.try_get(STARTED));
        let Some(Ok(started)) = started else {
            return Ok(());
        };
        if identity.knows(started) {
            return Ok(());
        }
        // Some server has executed the request.
        let unknown = |failure: Failure| match failure.kind {
            OtherStore => failure,
            kind => failure.instead_of(kind, Ambiguous),
        };
        let link = self.pool.take().await.map_err(unknown)?;
        let confirmed = link.confirm(self.config.timeout).await;
        confirmed.map_err(|e| unknown(Failure::of(&e)))?;
        if identity.knows(started) {
            return Ok(());
        }
        let why = "another server has answered than the one that is there now";
        Err(Failure::new(Ambiguous, why))
    }

    /// The error for a function that was refused, with the remedy, if the server can tell the
    /// reason.
    async fn why_refused(&self, sql: &str) -> Option<Error> {
        let call = sql.split_once(&format!(" {}.", self.config.schema));
        let (function, _) = call?.1.split_once('(')?;
        let asked = why_refused(&self.config.schema, function);
        let rows = self.pool.call(asked).await.ok()?;
        refusal(&self.config, function, rows.first()?).ok()?
    }

    /// Sends a request that changes nothing: without an answer it fails as `Unavailable` instead of
    /// `Ambiguous`.
    pub(crate) async fn read(&self, request: Request) -> Result<Vec<Row>> {
        Ok(self.call(request).await.map_err(Failure::of_a_read)?)
    }

    /// Notifies the clients that a verb's answer names: this client directly, and others by a
    /// request that no verb waits for.
    pub(crate) fn notify(&self, row: &Row) -> Result<()> {
        let (channels, payloads): (Vec<String>, Vec<String>) =
            (get(row, "channels")?, get(row, "payloads")?);
        let all = channels.into_iter().zip(payloads);
        let (own, others): (Vec<_>, Vec<_>) = all.partition(|(channel, _)| *channel == self.client);
        own.iter()
            .for_each(|(_, payload)| listener::pass(&self.notifier, &self.client, payload));
        self.notify_queue.add(others);
        Ok(())
    }

    /// Tells the sweeper that a release may have left a name without places.
    pub(crate) fn released(&self) {
        self.released.notify();
    }
}

/// The time that a verb waits for a row, in milliseconds: less than the client waits for the
/// answer.
fn patience(config: &Config) -> i32 {
    let patience = (config.timeout * 4 / 5).min(PATIENCE);
    i32::try_from(patience.as_millis()).unwrap_or(i32::MAX)
}

/// Sweeps from time to time, as long as there are releases.
async fn sweeping(sql: &Arc<str>, pool: &Arc<Pool>, released: &Signal) {
    let mut due = interval(SWEEP + SWEEP.mul_f64(fastrand::f64() / 4.0));
    due.set_missed_tick_behavior(MissedTickBehavior::Delay);
    due.tick().await;
    let mut released = released.listen();
    while released.changed().await.is_ok() {
        due.tick().await;
        // Two sweeps: by the second one the names of the last release are old enough.
        for _ in 0..2 {
            due.tick().await;
            let sweep = || Request::new(sql).number(millis(SWEEP)).int(SWEPT);
            while pool.call(sweep()).await.is_ok_and(|rows| {
                rows.first()
                    .is_some_and(|row| row.try_get(0).unwrap_or(false))
            }) {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The server answers a verb that waits for a row before the client gives up.
    #[test]
    fn a_verb_waits_for_less_than_its_client_does() {
        for timeout in [10, 100, 1000, 60_000].map(Duration::from_millis) {
            let waits = patience(&Config::default().timeout(timeout));
            assert!(
                waits > 0 && Duration::from_millis(waits as u64) < timeout,
                "{waits} of {timeout:?}"
            );
        }
        assert_eq!(
            patience(&Config::default().timeout(Duration::from_millis(100))),
            80
        );
    }
}
