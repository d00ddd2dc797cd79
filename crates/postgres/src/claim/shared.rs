//! What the verbs share: the connections, the statements, the bell.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use leasehold_core::ErrorKind::Unavailable;
use leasehold_core::seam::{ClaimId, Notifier};
use leasehold_core::{Error, Result};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::{MissedTickBehavior, interval};
use tokio_postgres::Row;

use crate::client::bell::{self, Bell};
use crate::client::install::{install, prepare};
use crate::client::pool::Pool;
use crate::client::request::Request;
use crate::client::ringer::Ringer;
use crate::config::{Bells, Config};
use crate::entry::{get, millis};
use crate::error::Failure;
use crate::scripts::call;

/// How many connections renewals may open: one request may be late.
const RENEWALS: usize = 2;
/// The longest that a verb waits for a row.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often what nobody uses is swept away, and how long it is kept at least.
const SWEEP: Duration = Duration::from_secs(15);
/// How many names are swept away by one request.
const SWEPT: i32 = 1_000;

/// One client of the store.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) statements: Statements,
    verbs: Arc<Pool>,
    ringer: Ringer,
    pub(crate) renewals: Arc<Pool>,
    pub(crate) notifier: Notifier,
    /// This client, and its channel if it is rung.
    pub(crate) client: String,
    is_rung: bool,
    pub(crate) warnings: Vec<String>,
    runtime: Handle,
    released: Arc<Notify>,
    tasks: OnceLock<Vec<AbortHandle>>,
}

/// The texts of all requests.
pub(crate) struct Statements {
    pub(crate) claim: Arc<str>,
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
}

impl Statements {
    fn new(schema: &str) -> Statements {
        let call = |function, casts: &[&str]| call(schema, function, casts).into();
        let id = "::text::uuid";
        let ids = "::text[]::uuid[]";
        Statements {
            claim: call("claim_1", &["", id, "", "", "", "", "", "", "", "", "", "", ""]),
            claim_all: call("claim_all_1", &["", ids, "", "", "", "", "", "", ""]),
            renew: call("renew_1", &[ids, "", "", "", ""]),
            release: call("release_1", &["", id, ""]),
            release_after: call("release_after_1", &["", id, "", ""]),
            evict: call("evict_1", &["", "", ""]),
            inspect: call("inspect_1", &[""]),
            list: call("list_1", &["", "", ""]),
            observe: call("observe_1", &["", "", ""]),
            sweep: call("sweep_1", &["", ""]),
            mark: call("mark_1", &[]),
            raise: call("raise_1", &["", ""]),
        }
    }
}

impl Shared {
    pub(crate) async fn connect(config: Config, runtime: Handle) -> Result<Arc<Shared>> {
        let (notifier, limit) = (Notifier::new(), config.timeout);
        let pool = |most| Pool::new(&config.server, most, limit, &runtime, &notifier);
        let (verbs, renewals) = (pool(config.connections), pool(RENEWALS));
        let link = verbs.link().await?;
        let mut warnings = prepare(&link, &config).await?;
        verbs.keep(link);
        let client = format!("lh_{}", ClaimId::fresh());
        let at = match &config.bells {
            Bells::Same => Some(&config.server),
            Bells::At(server) => Some(&**server),
            Bells::Off => None,
        };
        let listening = match at.map(|at| Bell::new(at, &client, limit, &runtime, &notifier)) {
            None => None,
            Some(bell) => {
                let hung = bell.hung(&verbs).await?;
                if hung.is_none() {
                    warnings.push(UNHEARD.to_owned());
                }
                if hung.is_some() && matches!(config.bells, Bells::Same) {
                    // What lets notifications through hands out no connections for single transactions.
                    verbs.set_direct();
                    renewals.set_direct();
                }
                hung.map(|listening| (bell, listening))
            }
        };
        let shared = Arc::new(Shared {
            statements: Statements::new(&config.schema),
            ringer: Ringer::new(&verbs, patience(&config), &runtime),
            verbs,
            renewals,
            notifier,
            client,
            is_rung: listening.is_some(),
            warnings,
            runtime: runtime.clone(),
            released: Arc::default(),
            tasks: OnceLock::new(),
            config,
        });
        let bell = listening.map(|(bell, listening)| runtime.spawn(bell.run(listening)).abort_handle());
        let sweep = runtime.spawn(sweeping(shared.sweep(), shared.verbs.clone(), shared.released.clone()));
        let _ = shared.tasks.set(bell.into_iter().chain([sweep.abort_handle()]).collect());
        Ok(shared)
    }

    /// Whether this client is rung.
    pub(crate) fn is_rung(&self) -> bool {
        self.is_rung
    }

    /// Where it is rung; empty if it is not.
    pub(crate) fn channel(&self) -> &str {
        if self.is_rung { &self.client } else { "" }
    }

    /// Fails once the client was closed.
    pub(crate) fn open(&self) -> Result<()> {
        if self.verbs.is_closed() { Err(Error::closed()) } else { Ok(()) }
    }

    /// Rings whom this client has left a turn to, and closes it.
    pub(crate) async fn close(&self) {
        self.ringer.end().await;
        self.shut();
    }

    pub(crate) fn shut(&self) {
        self.verbs.close();
        self.renewals.close();
        self.tasks.get().into_iter().flatten().for_each(AbortHandle::abort);
    }

    /// For how long a verb may wait for a row, in milliseconds.
    pub(crate) fn patience(&self) -> i32 {
        patience(&self.config)
    }

    /// Sends a request of a verb. Where the schema has gone, it is installed again first.
    pub(crate) async fn call(&self, request: Request) -> Result<Vec<Row>, Failure> {
        self.call_by(&self.verbs, request).await
    }

    pub(crate) async fn call_by(&self, pool: &Arc<Pool>, request: Request) -> Result<Vec<Row>, Failure> {
        let answer = pool.call(request).await;
        let Err(failure) = &answer else { return answer };
        if !failure.missing || !self.config.install {
            return answer;
        }
        let link = self.verbs.link().await?;
        install(&link, &self.config, 0).await.map_err(|e| Failure::of(&e))?;
        self.verbs.keep(link);
        Err(Failure::new(Unavailable, "the schema was missing, and has been installed anew"))
    }

    /// The same for one that changes nothing.
    pub(crate) async fn read(&self, request: Request) -> Result<Vec<Row>> {
        Ok(self.call(request).await.map_err(Failure::of_a_read)?)
    }

    /// Notifies whom a verb's answer names: those of this client at once, the others by a request that nobody waits for.
    pub(crate) fn ring(&self, row: &Row) -> Result<()> {
        let (channels, payloads): (Vec<String>, Vec<String>) = (get(row, "channels")?, get(row, "payloads")?);
        let all = channels.into_iter().zip(payloads);
        let (own, others): (Vec<_>, Vec<_>) = all.partition(|(channel, _)| *channel == self.client);
        own.iter().for_each(|(_, said)| bell::pass(&self.notifier, &self.client, said));
        self.ringer.ring(others);
        Ok(())
    }

    /// Something was released here, and may leave what is to be swept away.
    pub(crate) fn released(&self) {
        self.released.notify_one();
    }

    /// The runtime in which it was connected.
    pub(crate) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// The pool of the verbs.
    pub(crate) fn verbs(&self) -> &Arc<Pool> {
        &self.verbs
    }

    fn sweep(&self) -> impl Fn() -> Request + Send + 'static {
        let sql = self.statements.sweep.clone();
        move || Request::new(&sql).number(millis(SWEEP)).int(SWEPT)
    }
}

/// In milliseconds: less than a client waits for a request.
fn patience(config: &Config) -> i32 {
    let patience = (config.timeout * 4 / 5).min(PATIENCE);
    i32::try_from(patience.as_millis()).unwrap_or(i32::MAX)
}

/// Sweeps now and then, while there are releases.
async fn sweeping(sweep: impl Fn() -> Request, verbs: Arc<Pool>, released: Arc<Notify>) {
    let mut due = interval(SWEEP + SWEEP.mul_f64(fastrand::f64() / 4.0));
    due.set_missed_tick_behavior(MissedTickBehavior::Delay);
    due.tick().await;
    loop {
        released.notified().await;
        due.tick().await;
        // What was released last is to be old enough once more.
        for _ in 0..2 {
            due.tick().await;
            while verbs
                .call(sweep())
                .await
                .is_ok_and(|rows| rows.first().is_some_and(|row| row.try_get(0).unwrap_or(false)))
            {}
        }
    }
}

const UNHEARD: &str = "\
Notifications do not arrive: a pooler in transaction mode lets none through. Waiters poll. Give the address of the server itself, \
bells=host:port, or say bells=off.";

#[cfg(test)]
mod tests {
    use super::*;

    /// A verb that waits for a row has answered before its client gives it up.
    #[test]
    fn a_verb_waits_for_less_than_its_client_does() {
        for timeout in [10, 100, 1000, 60_000].map(Duration::from_millis) {
            let waits = patience(&Config::default().timeout(timeout));
            assert!(waits > 0 && Duration::from_millis(waits as u64) < timeout, "{waits} of {timeout:?}");
        }
        assert_eq!(patience(&Config::default().timeout(Duration::from_millis(100))), 80);
    }
}
