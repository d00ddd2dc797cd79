//! `verify`: what a server, configured as it is, really gives.

use std::cell::Cell;
use std::io;
use std::task::Poll;

use leasehold_verify::{Verification, verify_until};
use serde_json::Value;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::exit::{self, Exit, say};
use crate::output;
use crate::signals;
use crate::status_line::StatusLine;
use crate::store_url::StoreUrl;

/// A promise does not hold, or with `--strict` there is something to warn of.
const BROKEN: Exit = Exit::Code(1);

/// Test your own server with the conformance suite, and check its settings.
///
/// It uses clients only: it neither restarts nor slows down the server. Its locks are in a namespace of their own, which it
/// removes at the end, also if it is stopped by SIGTERM or Ctrl-C. It takes a minute or two for each server. Exit code 1 if a
/// promise does not hold; 69 or 64 if a server could not be tested. The other servers are tested all the same.
#[derive(Debug, clap::Args)]
pub(crate) struct Verify {
    /// The servers: redis://…, etcd://…, zookeeper://…, and the others of --store.
    #[arg(required = true, value_name = "URL")]
    urls: Vec<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Return exit code 1 for warnings too.
    #[arg(long)]
    strict: bool,
}

pub(crate) fn main(args: &Verify) -> io::Result<Exit> {
    // Cases judge by panicking: what they say is in the verdicts.
    std::panic::set_hook(Box::new(|panic| tracing::debug!(%panic, "a case failed")));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let mut all: Vec<Verification> = Vec::new();
    // What became of the first server that could not be judged: the others are judged all the same.
    let mut unjudged = None;
    for url in &args.urls {
        let shown = StoreUrl::new(url.as_str()).to_string();
        let bar = StatusLine::bar();
        bar.show(0.0, &shown);
        let progress = |p: leasehold_verify::Progress<'_>| {
            bar.show(p.done as f64 / p.of as f64, &format!("{shown}: {}", p.case));
        };
        let signalled = Cell::new(0);
        let judged = runtime.block_on(Box::pin(async {
            let mut signals = Stopping::new()?;
            let stop = async { signalled.set(signals.next().await) };
            Ok::<_, io::Error>(verify_until(url, &shown, progress, stop).await)
        }))?;
        match judged {
            Ok(Some(verification)) => all.push(verification),
            Ok(None) => {
                drop(bar);
                say(format!("{shown}: stopped; the namespace was removed"));
                return Ok(Exit::Code(exit::of_signal(signalled.get())));
            }
            Err(e) => {
                drop(bar);
                say(format!("{shown}: {}", exit::chain(&e)));
                unjudged.get_or_insert(Exit::Code(exit::of_error(&e)));
                continue;
            }
        }
        drop(bar);
        if let Some(last) = all.last().filter(|_| !args.json) {
            let separator = if all.len() > 1 { "\n" } else { "" };
            output::print(&format!("{separator}{}", output::plain_lines(&last.table())))?;
        }
    }
    if args.json {
        let values: Result<Vec<Value>, _> = all.iter().map(serde_json::to_value).collect();
        output::print(&output::safe_json(&format!("{:#}\n", Value::Array(values?))))?;
    }
    runtime.shutdown_background();
    let bad = all.iter().any(|found| !found.holds() || args.strict && found.warns());
    Ok(unjudged.unwrap_or(if bad { BROKEN } else { Exit::Code(0) }))
}

/// The signals that stop it, but for those that the caller ignores. A second one while it cleans up changes nothing.
struct Stopping(Vec<(i32, Signal)>);

impl Stopping {
    fn new() -> io::Result<Stopping> {
        let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
        let kinds = kinds.into_iter().filter(|kind| !signals::is_ignored(kind.as_raw_value()));
        kinds.map(|kind| Ok((kind.as_raw_value(), signal(kind)?))).collect::<io::Result<_>>().map(Stopping)
    }

    /// The number of the first that comes.
    async fn next(&mut self) -> i32 {
        std::future::poll_fn(|context| {
            let came = self.0.iter_mut().find_map(|(number, it)| it.poll_recv(context).is_ready().then_some(*number));
            came.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}
