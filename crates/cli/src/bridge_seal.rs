//! `bridge-seal`: the store that a fleet moves to goes on above all tokens of the store that it leaves.

use std::io::{self, stdout};
use std::time::Duration;

use leasehold::seam::Backend;
use leasehold::{Error, ErrorKind, FencingToken, LockQueue, Name, Participant, Result};
use serde_json::json;

use crate::exit::{self, Exit, say};
use crate::output;
use crate::store_url::StoreUrl;
use crate::table::Table;
use crate::waiting;

/// So many names are looked at.
const NAMES: usize = 1000;
/// A bridge is on its way from one store to the other for less than this.
const ON_ITS_WAY: Duration = Duration::from_secs(2);
/// The stores named by the environment, as a URL with a password is: other users can read the arguments of a process.
const FROM: &str = "LEASEHOLD_FROM";
const TO: &str = "LEASEHOLD_TO";

/// Seal a move from one store to another: raise the tokens of TO above all tokens of FROM.
///
/// For the step between two stages of a move over a bridge: no client that holds in FROM alone runs any more, and none that
/// holds in TO alone runs yet. Names that nobody took over the bridge go on with greater tokens then. It changes nothing else, and can be
/// repeated. On the way back, FROM and TO change places.
///
/// If a lock is held in FROM alone, somebody there is not on the bridge: it is shown, nothing is raised, and the exit code is 1. Clients
/// that hold nothing at this moment, or that wait, cannot be told from bridges; only you know that they have ended.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Exit codes:
  0    TO is raised
  1    somebody holds in FROM alone; nothing was raised
  64   wrong usage; or the tokens of TO cannot be raised so far
  69   a store was not available; TO was perhaps raised, and it does no harm to repeat it")]
pub(crate) struct BridgeSeal {
    /// The store that the fleet leaves [default: $LEASEHOLD_FROM].
    #[arg(value_name = "FROM", requires = "to")]
    from: Option<String>,
    /// The store that it moves to [default: $LEASEHOLD_TO].
    #[arg(value_name = "TO")]
    to: Option<String>,
    /// Raise it although somebody holds in FROM alone.
    #[arg(long)]
    force: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// A lock that is held in the one store alone.
struct Alone {
    name: Name,
    label: Option<String>,
    token: Option<FencingToken>,
}

/// What became of it.
struct Sealed {
    mark: FencingToken,
    was: FencingToken,
    is: FencingToken,
    /// Of the first names; and whether there are more.
    alone: Vec<Alone>,
    more: bool,
    raised: bool,
}

pub(crate) async fn main(args: BridgeSeal) -> io::Result<Exit> {
    let urls = url(args.from.as_deref(), FROM).and_then(|from| Ok((from, url(args.to.as_deref(), TO)?)));
    let (from, to) = match urls {
        Ok(urls) => urls,
        Err(what) => return Ok(exit::bad_usage(what)),
    };
    if from.secret() == to.secret() {
        return Ok(exit::bad_usage("FROM and TO are the same store"));
    }
    let failed = |url: &StoreUrl, e: &Error| {
        say(exit::of_store(e, &url.named()));
        Exit::Code(exit::of_error(e))
    };
    let old = match connect(&from).await {
        Ok(store) => store,
        Err(e) => return Ok(failed(&from, &e)),
    };
    let new = match connect(&to).await {
        Ok(store) => store,
        Err(e) => {
            let _ = old.close().await;
            return Ok(failed(&to, &e));
        }
    };
    let sealed = waiting::during(seal((&from, &*old), (&to, &*new), args.force), "sealing", &to.to_string()).await;
    // What they leave ends by itself.
    let _ = (old.close().await, new.close().await);
    match sealed {
        Ok(sealed) => sealed.show(&from, &to, args.json),
        Err((url, e)) => Ok(failed(url, &e)),
    }
}

fn url(argument: Option<&str>, variable: &str) -> std::result::Result<StoreUrl, String> {
    let named = argument.map(str::to_owned).or_else(|| std::env::var(variable).ok().filter(|url| !url.is_empty()));
    let Some(url) = named else { return Err(format!("two stores are needed: FROM and TO, or {FROM} and {TO}")) };
    StoreUrl::existing(Some(&url))
}

async fn connect(url: &StoreUrl) -> Result<Box<dyn Backend>> {
    url.check()?;
    waiting::during(Box::pin(leasehold::connect_backend(url.secret())), "connecting", &format!("to {url}")).await
}

type Of<'a> = (&'a StoreUrl, &'a dyn Backend);

async fn seal<'a>(
    (from, old): Of<'a>,
    (to, new): Of<'a>,
    force: bool,
) -> std::result::Result<Sealed, (&'a StoreUrl, Error)> {
    let Some(most) = new.guarantees().raises.limit() else {
        return Err((to, Error::new(ErrorKind::Unsupported, "the tokens of this store cannot be raised")));
    };
    let (alone, more) = held_alone((from, old), (to, new)).await?;
    let mark = old.mark().await.map_err(|e| (from, e))?;
    let was = new.mark().await.map_err(|e| (to, e))?;
    if mark >= most {
        let what = format!("its tokens can be raised to {most} at most, and those of {from} are at {mark}");
        return Err((to, Error::new(ErrorKind::Unsupported, what)));
    }
    let raised = alone.is_empty() || force;
    let mut is = was;
    if raised {
        new.raise(mark).await.map_err(|e| (to, e))?;
        is = new.mark().await.map_err(|e| (to, e))?;
    }
    Ok(Sealed { mark, was, is, alone, more, raised })
}

/// Who holds in old and has nothing in new, twice in a row: a bridge holds in new too, or waits there.
async fn held_alone<'a>(
    (from, old): Of<'a>,
    (to, new): Of<'a>,
) -> std::result::Result<(Vec<Alone>, bool), (&'a StoreUrl, Error)> {
    let mut names = old.list("", None, NAMES + 1).await.map_err(|e| (from, e))?;
    let more = names.len() > NAMES;
    names.truncate(NAMES);
    let mut alone: Vec<Alone> = Vec::new();
    for nth in 0..2 {
        let mut found = Vec::new();
        for name in names {
            let there = old.inspect(&name).await.map_err(|e| (from, e))?;
            let here = new.inspect(&name).await.map_err(|e| (to, e))?;
            let known = |token| nth == 0 || alone.iter().any(|it| it.name == name && it.token == token);
            let holders = there.holders.iter().filter(|holder| !is_in(holder, &here) && known(holder.token));
            found.extend(holders.map(|it| Alone { name: name.clone(), label: it.label.clone(), token: it.token }));
        }
        names = found.iter().map(|it| it.name.clone()).collect();
        names.dedup();
        alone = found;
        if nth == 0 && !alone.is_empty() {
            tokio::time::sleep(ON_ITS_WAY).await;
        }
    }
    Ok((alone, more))
}

/// By its token, or its label: it waits there, or its place there has a number of its own just below the token.
fn is_in(holder: &Participant, queue: &LockQueue) -> bool {
    queue.holders.iter().any(|it| it.token.is_some() && it.token == holder.token)
        || queue.holders.iter().chain(&queue.waiters).any(|it| it.label.is_some() && it.label == holder.label)
}

impl Sealed {
    fn show(&self, from: &StoreUrl, to: &StoreUrl, as_json: bool) -> io::Result<Exit> {
        let code = Exit::Code(u8::from(!self.raised));
        if self.more {
            say(format_args!("of the locks that are held in {from} only the first {NAMES} were looked at"));
        }
        if as_json {
            let each = |it: &Alone| json!({ "name": it.name.as_str(), "label": it.label, "token": it.token.map(FencingToken::get) });
            let text = json!({
                "from": from.to_string(),
                "to": to.to_string(),
                "mark": self.mark.get(),
                "was": self.was.get(),
                "is": self.is.get(),
                "raised": self.raised,
                "held_in_from_alone": self.alone.iter().map(each).collect::<Vec<_>>(),
            });
            output::print(&output::safe_json(&format!("{text:#}\n")))?;
            return Ok(code);
        }
        if !self.alone.is_empty() {
            let mut table = Table::new(["HELD IN FROM ALONE", "HOLDER", "TOKEN"]);
            for it in &self.alone {
                let token = it.token.map_or_else(|| "-".into(), |token| token.to_string());
                table.row([it.name.to_string(), it.label.clone().unwrap_or_else(|| "another tool".into()), token]);
            }
            output::print(&table.text(output::has_colours(&stdout())))?;
        }
        let Sealed { mark, was, is, .. } = self;
        if !self.raised {
            say(format_args!(
                "nothing was raised: whoever holds in {from} alone is not on the bridge (--force raises it)"
            ));
            return Ok(code);
        }
        output::print(&format!(
            "the tokens of {from} are at {mark} at most\nthose of {to} were at {was}, and go on above {is}\n"
        ))?;
        Ok(code)
    }
}
