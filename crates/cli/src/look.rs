//! `ls`, `who`, `break` and `guarantees`: what a store says, as tables for people and as JSON for programs.

use std::time::SystemTime;

use leasehold::{Entry, Error, FencingToken, Line, Name, Result, Store};
use serde_json::{Value, json};

use crate::args::{Break, Guarantees, List, StoreArg, Who};
use crate::exit::{self, Exit, say};
use crate::open::{farewell, open};
use crate::store_url::StoreUrl;
use crate::table::{self, Table};

/// The answer is no: nobody holds it, there was no such hold.
const NO: Exit = Exit::Code(1);
const YES: Exit = Exit::Code(0);

pub(crate) async fn ls(args: List) -> Exit {
    on(&args.store, async |store, _| {
        let after = args.after.as_deref().map(Name::new);
        let names = store.list(&args.prefix, after.as_ref(), args.limit).await?;
        let mut lines = Vec::new();
        for name in names {
            let line = store.lock(&name).inspect().await?;
            lines.push((name, line));
        }
        if args.json {
            table::json(&Value::Array(lines.iter().map(|(name, line)| described(name.as_str(), line)).collect()));
            return Ok(YES);
        }
        let mut table = Table::new(["NAME", "HOLDER", "TOKEN", "SINCE", "WAITING"]);
        for (name, line) in &lines {
            let holders = line.holders.len();
            let first = line.holders.first();
            let more = if holders > 1 { format!(" and {} more", holders - 1) } else { String::new() };
            table.row([
                name.to_string(),
                first.map_or_else(|| "-".into(), |entry| holder(entry) + &more),
                token(first),
                first.map_or_else(|| "-".into(), since),
                line.waiters.len().to_string(),
            ]);
        }
        table.print();
        Ok(YES)
    })
    .await
}

pub(crate) async fn who(args: Who) -> Exit {
    on(&args.store, async |store, shown| {
        let line = store.lock(&args.name).inspect().await?;
        let verdict = if line.holders.is_empty() { NO } else { YES };
        if args.json {
            table::json(&described(&args.name, &line));
            return Ok(verdict);
        }
        if line.holders.is_empty() && line.waiters.is_empty() {
            println!("{:?} at {shown}: nobody holds it", args.name);
            return Ok(verdict);
        }
        println!("{:?} at {shown}", args.name);
        let mut table = Table::new(["", "WHO", "TOKEN", "SINCE"]);
        for entry in &line.holders {
            table.row(["holds".into(), holder(entry), token(Some(entry)), since(entry)]);
        }
        for (place, entry) in line.waiters.iter().enumerate() {
            table.row([format!("waits {}", place + 1), holder(entry), "-".into(), since(entry)]);
        }
        table.print();
        Ok(verdict)
    })
    .await
}

pub(crate) async fn evict(args: Break) -> Exit {
    on(&args.store, async |store, shown| {
        let ended = store.evict(&args.name, FencingToken::new(args.token)).await?;
        if args.json {
            table::json(&json!({ "name": args.name, "token": args.token, "ended": ended }));
        } else if ended {
            println!("{:?} at {shown}: the hold with token {} was ended", args.name, args.token);
        } else {
            println!("{:?} at {shown}: nobody holds it with token {}", args.name, args.token);
        }
        Ok(if ended { YES } else { NO })
    })
    .await
}

pub(crate) async fn guarantees(args: Guarantees) -> Exit {
    on(&StoreArg { url: args.url.clone() }, async |store, shown| {
        let g = store.guarantees();
        if args.json {
            table::json(&json!({
                "store": g.store,
                "fencing": format!("{:?}", g.fencing),
                "fairness": format!("{:?}", g.fairness),
                "pushed_wake": g.pushed_wake,
                "min_ttl_ms": u64::try_from(g.min_ttl.as_millis()).unwrap_or(u64::MAX),
                "ttl_step_ms": u64::try_from(g.ttl_step.as_millis()).unwrap_or(u64::MAX),
                "recovery_ms": u64::try_from(g.recovery.as_millis()).unwrap_or(u64::MAX),
                "atomic_multi": g.atomic_multi,
                "notes": g.notes,
            }));
            return Ok(YES);
        }
        println!("{shown}");
        let mut table = Table::new(["", g.store]);
        table.row(["tokens rise".into(), fencing(g.fencing).into()]);
        table.row(["waiters are served".into(), fairness(g.fairness).into()]);
        let woken = if g.pushed_wake { "by a push of the store" } else { "by asking again" };
        table.row(["a release is noticed".into(), woken.into()]);
        table.row(["shortest lease".into(), format!("{:?}", g.min_ttl)]);
        table.row(["leases are multiples of".into(), format!("{:?}", g.ttl_step)]);
        table.row(["a dead holder's lock is free".into(), format!("at most {:?} after its lease", g.recovery)]);
        let at_once = match g.atomic_multi {
            0 | 1 => "one after the other".into(),
            usize::MAX => "in one step".into(),
            most => format!("in one step, up to {most}"),
        };
        table.row(["several names are taken".into(), at_once]);
        table.print();
        if !g.notes.is_empty() {
            println!("\n{}", g.notes);
        }
        Ok(YES)
    })
    .await
}

fn fencing(fencing: leasehold::Fencing) -> &'static str {
    match fencing {
        leasehold::Fencing::None => "not surely",
        leasehold::Fencing::WhileDataLives => "as long as the store keeps its data",
        leasehold::Fencing::SurvivesDataLoss => {
            "also when the store has lost its data, unless its clock steps back past it"
        }
        _ => "as the store's documentation says",
    }
}

fn fairness(fairness: leasehold::Fairness) -> &'static str {
    match fairness {
        leasehold::Fairness::None => "in any order",
        leasehold::Fairness::Bounded => "so that nobody is passed for ever",
        leasehold::Fairness::Strict => "in the order in which they came",
        _ => "as the store's documentation says",
    }
}

/// Asks a store, and says what is wrong if it cannot.
async fn on(store: &StoreArg, ask: impl AsyncFnOnce(&Store, &str) -> Result<Exit>) -> Exit {
    let url = match StoreUrl::choose(store.url.as_deref()) {
        Ok(url) => url,
        Err(what) => return exit::bad_usage(what),
    };
    let asked: Result<Exit, Error> = async {
        let store = open(&url).await?.store;
        let exit = ask(&store, &url.to_string()).await;
        farewell(&store).await;
        exit
    }
    .await;
    asked.unwrap_or_else(|e| {
        say(exit::chain(&e));
        Exit::Code(exit::of_error(&e))
    })
}

fn described(name: &str, line: &Line) -> Value {
    let entry = |entry: &Entry| {
        json!({
            "label": entry.label,
            "token": entry.token.map(FencingToken::get),
            "since": entry.since.map(|at| humantime::format_rfc3339_millis(at).to_string()),
            "foreign": entry.foreign,
        })
    };
    let all = |entries: &[Entry]| entries.iter().map(entry).collect::<Vec<_>>();
    json!({ "name": name, "holders": all(&line.holders), "waiters": all(&line.waiters) })
}

fn holder(entry: &Entry) -> String {
    match (&entry.label, entry.foreign) {
        (Some(label), false) => label.clone(),
        (Some(label), true) => format!("{label} (another tool)"),
        (None, true) => "another tool".into(),
        (None, false) => "somebody".into(),
    }
}

fn token(entry: Option<&Entry>) -> String {
    entry.and_then(|entry| entry.token).map_or_else(|| "-".into(), |token| token.to_string())
}

/// By the store's clock and ours: good enough for people.
fn since(entry: &Entry) -> String {
    let Some(at) = entry.since else { return "-".into() };
    let age = SystemTime::now().duration_since(at).unwrap_or_default();
    let age = humantime::format_duration(std::time::Duration::from_secs(age.as_secs()));
    format!("{} ({age} ago)", humantime::format_rfc3339_seconds(at))
}
