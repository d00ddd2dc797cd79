//! `bridge-seal`: raises the tokens of the store that a fleet moves to above all tokens of the
//! store that it leaves.

use std::io::{self, stdout};

use leasehold::backend::{Backend, TokenFloor};
use leasehold::{Error, ErrorKind, FencingToken, InStage, Result};
use serde_json::json;

use crate::bridge_stages::{Stores, entry, row};
use crate::exit::{Exit, say};
use crate::output;
use crate::table::Table;
use crate::waiting;

/// Seal a move from one store to another: raise the tokens of TO above all tokens of FROM.
///
/// For the step between two stages of a move over a bridge: no client that holds in FROM alone runs any more, and none that
/// holds in TO alone runs yet. Names that nobody took over the bridge go on with greater tokens then. It changes nothing else, and can be
/// repeated. On the way back, FROM and TO change places.
///
/// All names are looked at, before TO is raised and once more after it. If a lock is held in FROM alone, somebody there is not on the
/// bridge: it is shown, and the exit code is 1. The same is said of a bridge that waits in TO for somebody else: repeat the command when
/// it has been granted. Clients that hold nothing at this moment, or that wait in FROM, cannot be told from bridges; only you know that
/// they have ended.
///
/// It takes and gives back a shared lock in FROM, named `leasehold-bridge`, to see that FROM and TO are not one store.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Exit codes:
  0    TO is raised
  1    somebody holds in FROM alone; nothing was raised, or standard error says that TO was
  64   wrong usage; or the tokens of TO cannot be raised so far
  69   a store was not available; TO was perhaps raised, and it does no harm to repeat it")]
pub(crate) struct BridgeSeal {
    #[command(flatten)]
    stores: Stores,
    /// Raise it although somebody holds in FROM alone.
    #[arg(long)]
    force: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// The result of sealing.
struct Sealed {
    mark: FencingToken,
    was: FencingToken,
    is: FencingToken,
    /// The holds in FROM alone.
    alone: Vec<InStage>,
    raised: bool,
}

pub(crate) async fn main(args: BridgeSeal) -> io::Result<Exit> {
    let both = match args.stores.open(false).await {
        Ok(both) => both,
        Err(exit) => return Ok(exit),
    };
    let from = both.old.url.to_string();
    let to = both.new.url.to_string();
    let sealed = waiting::during(
        async {
            // A store is no bridge to itself: whoever holds in it would seem to hold in both.
            both.bridge.check().await?;
            let old = &*both.old.store;
            let new = &*both.new.store;
            let alone = || async {
                let mut seen = both.bridge.stages().await?;
                seen.retain(|it| it.is_alone_in_old);
                Ok::<_, Error>(seen)
            };
            seal(old, new, alone, args.force).await
        },
        "sealing",
        &to,
    )
    .await;
    both.close().await;
    match sealed {
        Ok(sealed) => sealed.show(&from, &to, &args),
        Err(e) => Ok(both.failed(&e)),
    }
}

async fn seal<A: Future<Output = Result<Vec<InStage>>>>(
    old: &dyn Backend,
    new: &dyn Backend,
    alone: impl Fn() -> A,
    force: bool,
) -> Result<Sealed> {
    let in_from = |e: Error| e.in_context("FROM");
    let in_to = |e: Error| e.in_context("TO");
    let of = |store| -> Result<&dyn TokenFloor> {
        let store: &dyn Backend = store;
        let why = "its tokens cannot be raised";
        store
            .token_floor()
            .ok_or_else(|| Error::new(ErrorKind::Unsupported, why))
    };
    let to = of(new).map_err(in_to)?;
    let from = of(old).map_err(in_from)?;
    let most = to.raises().limit();
    let before = alone().await?;
    let mark = from.mark().await.map_err(in_from)?;
    let was = to.mark().await.map_err(in_to)?;
    if mark >= most {
        let what =
            format!("its tokens can be raised to {most} at most, and those of FROM are at {mark}");
        return Err(in_to(Error::new(ErrorKind::Unsupported, what)));
    }
    if !before.is_empty() && !force {
        return Ok(Sealed {
            mark,
            was,
            is: was,
            alone: before,
            raised: false,
        });
    }
    to.raise(mark).await.map_err(in_to)?;
    let is = to.mark().await.map_err(in_to)?;
    // Looks again for holds that have begun meanwhile, also under new names and names that were
    // looked at already.
    Ok(Sealed {
        mark,
        was,
        is,
        alone: alone().await?,
        raised: true,
    })
}

impl Sealed {
    fn show(&self, from: &str, to: &str, args: &BridgeSeal) -> io::Result<Exit> {
        let Sealed {
            mark,
            was,
            is,
            alone,
            raised,
        } = self;
        let is_sealed = *raised && (alone.is_empty() || args.force);
        let code = Exit::Code(u8::from(!is_sealed));
        if args.json {
            let text = json!({
                "from": from,
                "to": to,
                "mark": mark.get(),
                "was": was.get(),
                "is": is.get(),
                "raised": raised,
                "held_in_from_alone": alone.iter().map(entry).collect::<Vec<_>>(),
            });
            output::print(&output::safe_json(&format!("{text:#}\n")))?;
        } else {
            if !alone.is_empty() {
                let mut table = Table::new(["HELD IN FROM ALONE", "STAGE", "", "LABEL", "TOKEN"]);
                alone.iter().for_each(|it| table.row(row(it)));
                output::print(&table.text(output::has_colours(&stdout())))?;
            }
            if *raised {
                output::print(&format!(
                    "the tokens of {from} are at {mark} at most\nthose of {to} were at {was}, and go on above {is}\n"
                ))?;
            }
        }
        if !raised {
            say(format_args!(
                "nothing was raised: whoever holds in {from} alone is not on the bridge, or waits in {to} (--force raises it)"
            ));
        } else if !alone.is_empty() {
            say(format_args!(
                "{to} was raised, but somebody holds in {from} alone, and its tokens go on: end it, and repeat this"
            ));
        }
        Ok(code)
    }
}
