//! `bridge-stages`: shows which client is in which stage of a move between two stores.

use std::io::{self, stdout};
use std::sync::Arc;

use leasehold::backend::Backend;
use leasehold::{Bridge, Error, FencingToken, InStage, Result, Stage};
use serde_json::{Value, json};

use crate::exit::{self, Exit, say};
use crate::open::connect_backend;
use crate::output;
use crate::participant::{holder, token};
use crate::store_url::StoreUrl;
use crate::table::Table;
use crate::waiting;

/// The variables that name the two stores. They are for URLs with a password, since other users can
/// read the arguments of a process.
const FROM: &str = "LEASEHOLD_FROM";
const TO: &str = "LEASEHOLD_TO";

/// The two stores of a move.
#[derive(Debug, clap::Args)]
pub(crate) struct Stores {
    /// The store that the fleet leaves [default: $LEASEHOLD_FROM].
    #[arg(value_name = "FROM", requires = "to")]
    from: Option<String>,
    /// The store that it moves to [default: $LEASEHOLD_TO].
    #[arg(value_name = "TO")]
    to: Option<String>,
}

/// Show who is in which stage of a move from one store to another over a bridge.
///
/// Stage 1 holds in FROM, stage 2, the bridge, in both by one token, stage 3 in TO. Each hold and each waiting claim of both stores is
/// shown with its stage. Who waits in FROM is in stage 1 or 2, and who waits in TO perhaps in stage 2 or 3: a store cannot tell. A client
/// that neither holds nor waits at this moment is not seen.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Exit codes:
  0    nobody holds in FROM alone
  1    somebody does: it is in stage 1, or a bridge that waits in TO
  64   wrong usage
  69   a store was not available")]
pub(crate) struct BridgeStages {
    #[command(flatten)]
    stores: Stores,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// A store and its URL.
pub(crate) struct Opened {
    pub(crate) url: StoreUrl,
    pub(crate) store: Arc<dyn Backend>,
}

/// Both stores of a move.
pub(crate) struct Both {
    pub(crate) old: Opened,
    pub(crate) new: Opened,
    pub(crate) bridge: Bridge,
}

pub(crate) async fn main(args: BridgeStages) -> io::Result<Exit> {
    let both = match args.stores.open(true).await {
        Ok(both) => both,
        Err(exit) => return Ok(exit),
    };
    let stages = waiting::during(both.bridge.stages(), "looking", &both.named()).await;
    both.close().await;
    let stages = match stages {
        Ok(stages) => stages,
        Err(e) => return Ok(both.failed(&e)),
    };
    let alone = stages.iter().filter(|it| it.is_alone_in_old).count();
    let code = Exit::Code(u8::from(alone > 0));
    if args.json {
        let all: Vec<Value> = stages.iter().map(entry).collect();
        output::print(&output::safe_json(&format!("{:#}\n", Value::from(all))))?;
        return Ok(code);
    }
    if !stages.is_empty() {
        let mut table = Table::new(["NAME", "STAGE", "", "LABEL", "TOKEN"]);
        stages.iter().for_each(|it| table.row(row(it)));
        output::print(&table.text(output::has_colours(&stdout())))?;
    }
    let count = |holds, stage| {
        let is = |it: &&InStage| it.holds == holds && it.stage == stage;
        stages.iter().filter(is).count()
    };
    output::print(&format!(
        "in FROM alone: {alone} held, {} waiting; in both: {} held; in TO alone: {} held, {} waiting\n",
        count(false, Stage::OneOrTwo),
        count(true, Stage::Two),
        count(true, Stage::Three),
        count(false, Stage::TwoOrThree) + count(false, Stage::Three),
    ))?;
    Ok(code)
}

/// The cells of a row: name, stage, `holds` or `waits`, label, token.
pub(crate) fn row(it: &InStage) -> [String; 5] {
    [
        it.name.to_string(),
        it.stage.to_string(),
        if it.holds { "holds" } else { "waits" }.into(),
        holder(&it.participant),
        token(&it.participant),
    ]
}

pub(crate) fn entry(it: &InStage) -> Value {
    json!({
        "name": it.name.as_str(),
        "stage": it.stage.to_string(),
        "holds": it.holds,
        "alone_in_from": it.is_alone_in_old,
        "label": it.participant.label,
        "token": it.participant.token.map(FencingToken::get),
        "foreign": it.participant.foreign,
    })
}

impl Stores {
    /// Opens both stores. On failure it reports the error and returns the command's exit. `looks`:
    /// the command only reads.
    pub(crate) async fn open(&self, looks: bool) -> Result<Both, Exit> {
        let old = url(self.from.as_deref(), FROM).map_err(exit::bad_usage)?;
        let new = url(self.to.as_deref(), TO).map_err(exit::bad_usage)?;
        if old.secret() == new.secret() {
            return Err(exit::bad_usage("FROM and TO are the same store"));
        }
        let old = connect(old, looks).await?;
        let new = match connect(new, looks).await {
            Ok(new) => new,
            Err(exit) => {
                let _ = old.store.close().await;
                return Err(exit);
            }
        };
        match Bridge::new(old.store.clone(), new.store.clone()) {
            Ok(bridge) => Ok(Both { old, new, bridge }),
            Err(e) => Err(failed(&named(&old.url, &new.url), &e)),
        }
    }
}

impl Both {
    fn named(&self) -> String {
        named(&self.old.url, &self.new.url)
    }

    /// Closes both stores. An error is ignored: anything that they leave behind ends by itself.
    pub(crate) async fn close(&self) {
        let _ = self.bridge.close().await;
    }

    pub(crate) fn failed(&self, e: &Error) -> Exit {
        failed(&self.named(), e)
    }
}

fn named(old: &StoreUrl, new: &StoreUrl) -> String {
    format!("from {} to {}", old.named(), new.named())
}

fn failed(named: &str, e: &Error) -> Exit {
    say(exit::of_store(e, named));
    Exit::Code(exit::of_error(e))
}

fn url(argument: Option<&str>, variable: &str) -> std::result::Result<StoreUrl, String> {
    let named = argument
        .map(str::to_owned)
        .or_else(|| std::env::var(variable).ok().filter(|url| !url.is_empty()));
    let Some(url) = named else {
        return Err(format!(
            "two stores are needed: FROM and TO, or {FROM} and {TO}"
        ));
    };
    StoreUrl::new(url).present()
}

async fn connect(url: StoreUrl, looks: bool) -> Result<Opened, Exit> {
    let connected = async {
        url.check()?;
        connect_backend(&url, looks).await
    };
    let connected = waiting::during(Box::pin(connected), "connecting", &format!("to {url}")).await;
    match connected {
        Ok(store) => Ok(Opened { store, url }),
        Err(e) => Err(failed(&url.named(), &e)),
    }
}
