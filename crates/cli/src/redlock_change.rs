//! `redlock-change`: changes the list of a Redlock's nodes while programs run.

use std::io;
use std::time::Duration;

use leasehold::redlock::{Config, NodesChange, change_nodes};
use leasehold::{Error, Result};
use serde_json::json;

use crate::exit::{self, Exit, say};
use crate::output;
use crate::store_url::StoreUrl;
use crate::waiting;

/// The variables that name the two lists. They are for URLs with a password, since other users can
/// read the arguments of a process.
const OLD: &str = "LEASEHOLD_OLD";
const NEW: &str = "LEASEHOLD_NEW";

/// Change the nodes of a Redlock while programs run, one node at a time.
///
/// OLD names the nodes in use, and NEW those to use: with one node more, with one less, or the same. A dead node is replaced by way of
/// the list without it, a healthy one by way of the list with both. The first change, from OLD to OLD, gives the list a number, and a
/// second one tells it to programs that run.
///
/// Programs that were started with OLD go on. Start all of them with NEW before the next change: from then on a program that still uses OLD
/// gets no lock and loses those that it holds. Other tools on the same locks are not told: they must never be two lists behind.
///
/// The same change to the same list brings back a node that was away. A node that has lost its data has no vote: two changes from the list to
/// itself bring it back. Whatever ends this command, locks go on, and the command is to be repeated.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  leasehold redlock-change redlock://a,b,c redlock://a,b,c      give today's list a number, twice
  leasehold redlock-change redlock://a,b,c redlock://a,b,c,d    then d takes part

Exit codes:
  0    NEW is in use, and every node of it has a vote
  1    NEW is in use, and some nodes of it have no vote; or an earlier change to other nodes was completed instead
  64   wrong usage; or OLD is not the list in use
  69   no majority of OLD or of NEW answered; nothing is lost, and the command is to be repeated")]
pub(crate) struct RedlockChange {
    /// The nodes in use [default: $LEASEHOLD_OLD].
    #[arg(value_name = "OLD", requires = "new")]
    old: Option<String>,
    /// The nodes to use from now on [default: $LEASEHOLD_NEW].
    #[arg(value_name = "NEW")]
    new: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) async fn main(args: RedlockChange) -> io::Result<Exit> {
    let lists = list(args.old.as_deref(), OLD).and_then(|old| {
        let new = list(args.new.as_deref(), NEW)?;
        Ok((old, new))
    });
    let ((old, from), (new, to)) = match lists {
        Ok(lists) => lists,
        Err(exit) => return Ok(exit),
    };
    let waits = |rest: Duration| {
        say(format_args!(
            "waiting {:.1} s for leases of programs that still use the list before OLD",
            rest.as_secs_f64()
        ));
    };
    let change = change_nodes(&from, &to, waits);
    match waiting::during(change, "changing", &format!("{old} to {new}")).await {
        Ok(change) => show(&change, args.json),
        Err(e) => Ok(failed(&format!("from {old} to {new}"), &e)),
    }
}

fn show(change: &NodesChange, as_json: bool) -> io::Result<Exit> {
    let NodesChange {
        number,
        nodes,
        was_another,
        without_vote,
        ..
    } = change;
    if as_json {
        let without: Vec<_> = without_vote
            .iter()
            .map(|(node, why)| json!({ "node": node, "why": why }))
            .collect();
        let text = json!({
            "number": number,
            "nodes": nodes,
            "was_another": was_another,
            "without_vote": without,
        });
        output::print(&output::safe_json(&format!("{text:#}\n")))?;
    } else {
        output::print(&output::plain(&format!(
            "list {number}: {}",
            nodes.join(", ")
        )))?;
        output::print("\n")?;
    }
    for (node, why) in without_vote {
        say(format_args!("{node} has no vote: {why}"));
    }
    if *was_another {
        say("an earlier change was not complete: it is now, and yours was not begun");
    }
    Ok(Exit::Code(u8::from(
        *was_another || !without_vote.is_empty(),
    )))
}

/// The URL and the nodes of a list.
fn list(argument: Option<&str>, variable: &str) -> std::result::Result<(StoreUrl, Config), Exit> {
    let named = argument
        .map(str::to_owned)
        .or_else(|| std::env::var(variable).ok().filter(|url| !url.is_empty()));
    let Some(url) = named else {
        return Err(exit::bad_usage(format_args!(
            "two lists of nodes are needed: OLD and NEW, or {OLD} and {NEW}"
        )));
    };
    let url = StoreUrl::new(url);
    let config: Result<Config> = url.secret().parse();
    match config {
        Ok(config) => Ok((url, config)),
        Err(e) => Err(failed(&url.named(), &e)),
    }
}

fn failed(named: &str, e: &Error) -> Exit {
    say(exit::of_store(e, named));
    Exit::Code(exit::of_error(e))
}
