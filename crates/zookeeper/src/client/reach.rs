//! The state of a server, which the client crate does not report. It is asked in plain text (`srvr`,
//! which every server answers in its default configuration): for the reasons why no server can be
//! used, and whether a server has left the others.

use std::io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionRefused, ConnectionReset};
use std::time::Duration;

use futures_util::future::join_all;
use leasehold_core::backend::Moment;
use leasehold_core::support::{fault, locked};
use leasehold_core::{Error, ErrorKind};
use leasehold_net::Host;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, lookup_host};
use tokio::sync::Mutex;
use tokio::time::timeout;
use zookeeper_client::Error as ZkError;

use crate::config::{Config, DEFAULT_PORT};
use crate::error::Answer;

/// The greatest length of an answer that is read; no more of it is of use.
const MOST: u64 = 4096;

/// The time for which the reasons hold: many requests fail together, and one of them asks for all.
const RECENT: Duration = Duration::from_secs(2);

/// The reasons that the servers of one client told last.
#[derive(Default)]
pub(super) struct Reasons(Mutex<Option<(Moment, String)>>);

impl Reasons {
    /// Asks each server once, or returns what they told just now.
    pub(super) async fn ask(&self, config: &Config) -> String {
        let mut last = self.0.lock().await;
        match &*last {
            Some((when, told)) if Moment::now() < *when + RECENT => told.clone(),
            _ => {
                let each = config.each_server().map(|server| explain(config, server));
                let told = join_all(each).await.join("; ");
                *last = Some((Moment::now(), told.clone()));
                told
            }
        }
    }
}

impl Config {
    /// Fails if this server runs alone although the configuration names several: it has left the
    /// others, whose data and identity it may still have. One that does not tell is trusted, as is
    /// each over TLS.
    pub(crate) async fn check_company(&self, server: &str) -> Answer<()> {
        if self.is_secure() || !self.names_several() || fault("any-store") {
            return Ok(());
        }
        let answer = asked(server, self.timeout).await.unwrap_or_default();
        let mut is_known = locked(&self.alone);
        if mode(&answer) != Some("standalone") {
            *is_known = None;
            return Ok(());
        }
        let what = format!(
            "{server} runs alone (standalone), and several servers are named: its locks are no longer those of the others, so it is not used. \
             Let it join them, or name it alone"
        );
        let before = is_known.replace(what.clone());
        drop(is_known);
        if before.as_ref() != Some(&what) {
            tracing::warn!("{what}");
        }
        Err(ZkError::UnexpectedError(what))
    }

    fn names_several(&self) -> bool {
        self.servers.contains(',')
    }

    /// The error if the server that was asked last belongs to another store, or runs alone.
    pub(crate) fn complaint(&self) -> Option<Error> {
        let alone = || {
            let what = locked(&self.alone).clone()?;
            Some(Error::new(ErrorKind::OtherStore, what))
        };
        self.identity.complaint().or_else(alone)
    }
}

/// The part of a server in an ensemble, by its answer.
fn mode(answer: &str) -> Option<&str> {
    answer.lines().find_map(|line| line.strip_prefix("Mode: "))
}

/// Returns a sentence with the state that the server at this address reports, or with the obstacle,
/// and the remedy.
async fn explain(config: &Config, server: &str) -> String {
    let what = match asked(server, config.timeout).await {
        Ok(answer) if config.names_several() && mode(&answer) == Some("standalone") => {
            "it runs alone (standalone), and several servers are named: let it join them, or name it alone".into()
        }
        Ok(answer) => of_answer(&answer),
        Err(why) => why,
    };
    format!("{server}: {what}")
}

/// The server's answer. It may be empty.
async fn asked(server: &str, limit: Duration) -> Result<String, String> {
    let host = Host::parse(server, DEFAULT_PORT).map_err(|e| e.to_string())?;
    let late =
        |_| "it does not answer: is it up, and does a firewall let clients through?".to_owned();
    let connecting = async {
        let mut addrs = lookup_host((&*host.name, host.port)).await.map_err(|e| {
            format!("the host name cannot be looked up: is it written right? ({e})")
        })?;
        let addr = addrs.next();
        let addr = addr.ok_or("the host name has no address: is it written right?")?;
        match TcpStream::connect(addr).await {
            Ok(stream) => Ok(Some(stream)),
            // It was closed before it could be used.
            Err(e) if matches!(e.kind(), BrokenPipe | ConnectionAborted | ConnectionReset) => {
                Ok(None)
            }
            Err(e) if e.kind() == ConnectionRefused => Err(
                "nothing listens at this port: is ZooKeeper running there, and is the port right?"
                    .to_owned(),
            ),
            Err(e) => Err(format!("it cannot be reached: {e}")),
        }
    };
    let Some(mut stream) = timeout(limit, connecting).await.map_err(late)?? else {
        return Ok(String::new());
    };
    let mut answer = Vec::new();
    let asking = async {
        // A server that closes the connection at once has nothing more to report. The fifth byte
        // shows a server that waits for TLS that this is none.
        if stream.write_all(b"srvr\n").await.is_ok() {
            let _ = stream.take(MOST).read_to_end(&mut answer).await;
        }
    };
    timeout(limit, asking).await.map_err(|_| {
        "it takes connections and does not answer: it is stopped or overloaded, or it is no ZooKeeper"
            .to_owned()
    })?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// The meaning of an answer.
fn of_answer(answer: &str) -> String {
    if answer.is_empty() {
        return "it closes connections without a word: its maxClientCnxns (or maxCnxns) is used up, or it wants TLS (zookeepers://)".into();
    }
    if answer.contains("not currently serving requests") {
        return "it has no quorum: start the other servers, or mend its way to a majority of them"
            .into();
    }
    match mode(answer) {
        Some("read-only") => {
            "it has no quorum and only reads (readonlymode.enabled): start the other servers, or mend its way to a majority of them".into()
        }
        Some(mode) => format!(
            "it serves ({mode}) and opened no session: it refuses the credentials, wants SASL, or is slower than the time-out; its log says which"
        ),
        None if answer.contains("not in the whitelist") => {
            "it is there and opened no session; it would tell why with srvr in its 4lw.commands.whitelist".into()
        }
        None => "it wants TLS (zookeepers://), or it is no ZooKeeper".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The answers that need a server of another kind.
    #[test]
    fn an_answer_is_told_with_what_to_do() {
        for (answer, says) in [
            ("", "maxClientCnxns"),
            (
                "This ZooKeeper instance is not currently serving requests\n",
                "no quorum: start",
            ),
            ("Zookeeper version: 3\nMode: read-only\n", "only reads"),
            (
                "Zookeeper version: 3\nMode: follower\n",
                "serves (follower)",
            ),
            (
                "srvr is not executed because it is not in the whitelist.\n",
                "4lw.commands.whitelist",
            ),
            ("\u{15}\u{3}", "wants TLS"),
        ] {
            assert!(of_answer(answer).contains(says), "{answer:?}");
        }
    }
}
