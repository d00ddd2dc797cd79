//! `verify`: tests a server with the configuration that it has.

use std::io;

use leasehold_lab::verify::{Progress, Verification, check_servers, verify};

use crate::exit::{self, Exit, say};
use crate::output;
use crate::signals::Inherited;
use crate::status_line::StatusLine;
use crate::store_url::StoreUrl;

/// A promise does not hold, or with `--strict` there is a warning.
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
    /// Check the servers only: their versions and settings, and whether they are servers of one store. Seconds instead of minutes.
    #[arg(long)]
    servers_only: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Return exit code 1 for warnings too.
    #[arg(long)]
    strict: bool,
}

pub(crate) async fn main(args: Verify, signals: Inherited) -> io::Result<Exit> {
    // Cases judge by panicking. The verdicts have their messages.
    std::panic::set_hook(Box::new(|panic| tracing::debug!(%panic, "a case failed")));
    let signals = signals.listen()?;
    let mut all: Vec<Verification> = Vec::new();
    // The exit for the first server that could not be judged. The others are judged all the same.
    let mut unjudged = None;
    for url in &args.urls {
        let shown = StoreUrl::new(url).to_string();
        let bar = StatusLine::bar();
        bar.show(0.0, &shown);
        let progress = |p: Progress<'_>| {
            bar.show(p.done as f64 / p.of as f64, &format!("{shown}: {}", p.case));
        };
        let mut stopped = Ok(0);
        let stop = async {
            stopped = signals.interruption().await;
        };
        let judged = if args.servers_only {
            tokio::select! {
                checked = check_servers(url, &shown) => checked.map(Some),
                () = stop => Ok(None),
            }
        } else {
            // A second signal during the removal of the namespace changes nothing.
            verify(url, &shown, progress, stop).await
        };
        drop(bar);
        match judged {
            Ok(Some(verification)) => all.push(verification),
            Ok(None) => {
                let left = if args.servers_only {
                    ""
                } else {
                    "; the namespace was removed"
                };
                say(format_args!("{shown}: stopped{left}"));
                return Ok(Exit::Code(exit::of_signal(stopped?)));
            }
            Err(e) => {
                say(format_args!("{shown}: {}", exit::chain(&e)));
                unjudged.get_or_insert(Exit::Code(exit::of_error(&e)));
                continue;
            }
        }
        if let Some(last) = all.last().filter(|_| !args.json) {
            let separator = if all.len() > 1 { "\n" } else { "" };
            output::print(&format!(
                "{separator}{}",
                output::plain_lines(&last.table())
            ))?;
        }
    }
    if args.json {
        output::print(&output::safe_json(
            &(serde_json::to_string_pretty(&all)? + "\n"),
        ))?;
    }
    let bad = all
        .iter()
        .any(|found| !found.holds() || args.strict && found.warns());
    Ok(unjudged.unwrap_or(if bad { BROKEN } else { Exit::Code(0) }))
}
