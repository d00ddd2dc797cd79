//! `ls`, `who`, `break` and `guarantees`: what a store says, as tables for people and as JSON for programs.

use std::io::{self, stdout};
use std::time::SystemTime;

use leasehold::seam::Mode;
use leasehold::{Error, FencingToken, LockQueue, Name, Participant, Result, Store};
use serde_json::{Value, json};

use crate::args::{Break, Guarantees, List, Who};
use crate::exit::{self, Exit, say};
use crate::open::{farewell, open};
use crate::output;
use crate::store_url::StoreUrl;
use crate::table::Table;
use crate::waiting;

/// The answer is no: nobody holds it, there was no such hold.
const NO: Exit = Exit::Code(1);
const YES: Exit = Exit::Code(0);

pub(crate) async fn ls(args: List) -> io::Result<Exit> {
    on(StoreUrl::existing(args.store.url.as_deref()), async |store, _| {
        let after = args.after.as_deref().map(Name::new);
        let limit = args.limit as usize;
        let mut names = store.list(&args.prefix, after.as_ref(), limit + 1).await?;
        if names.len() > limit {
            names.truncate(limit);
            let last = names.last().map(Name::to_string).unwrap_or_default();
            say(format_args!("these are the first {limit}; --after {last:?} shows the next, --limit N more at once"));
        }
        let mut lines = Vec::new();
        for name in names {
            let line = store.lock(&name).inspect().await?;
            lines.push((name, line));
        }
        if args.json {
            return Ok((YES, json(&lines.iter().map(|(name, line)| described(name.as_str(), line)).collect())));
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
        Ok((YES, shown(table)))
    })
    .await
}

pub(crate) async fn who(args: Who) -> io::Result<Exit> {
    on(StoreUrl::existing(args.store.url.as_deref()), async |store, at| {
        let line = store.lock(&args.name).inspect().await?;
        let verdict = if line.holders.is_empty() { NO } else { YES };
        if args.json {
            return Ok((verdict, json(&described(&args.name, &line))));
        }
        if line.holders.is_empty() && line.waiters.is_empty() {
            return Ok((verdict, format!("{:?} at {at}: nobody holds it\n", args.name)));
        }
        let mut table = Table::new(["", "WHO", "HOW", "TOKEN", "SINCE"]);
        for entry in &line.holders {
            table.row(["holds".into(), holder(entry), mode(entry), token(Some(entry)), since(entry)]);
        }
        for (place, entry) in line.waiters.iter().enumerate() {
            table.row([format!("waits {}", place + 1), holder(entry), mode(entry), "-".into(), since(entry)]);
        }
        let taken = taken(&line.holders).map_or_else(String::new, |(n, of)| format!(": {n} of {of} permits are taken"));
        Ok((verdict, format!("{:?} at {at}{taken}\n{}", args.name, shown(table))))
    })
    .await
}

pub(crate) async fn evict(args: Break) -> io::Result<Exit> {
    on(StoreUrl::existing(args.store.url.as_deref()), async |store, at| {
        let (name, token) = (&args.name, args.token());
        let ended = store.evict(name, FencingToken::new(token)).await?;
        let text = match (args.json, ended) {
            (true, _) => json(&json!({ "name": name, "token": token, "ended": ended })),
            (false, true) if args.foreign => format!("{name:?} at {at}: the hold of another tool was ended\n"),
            (false, false) if args.foreign => format!("{name:?} at {at}: no other tool holds it\n"),
            (false, true) => format!("{name:?} at {at}: the hold with token {token} was ended\n"),
            (false, false) => format!("{name:?} at {at}: nobody holds it with token {token}\n"),
        };
        Ok((if ended { YES } else { NO }, text))
    })
    .await
}

pub(crate) async fn guarantees(args: Guarantees) -> io::Result<Exit> {
    let url = args.of.or(args.store.url);
    on(StoreUrl::any(url.as_deref()), async |store, at| {
        let g = store.guarantees();
        if args.json {
            let given = json!({
                "store": g.store,
                "fencing": snake_case(&g.fencing),
                "fairness": snake_case(&g.fairness),
                "pushed_wake": g.pushed_wake,
                "min_ttl_ms": u64::try_from(g.min_ttl.as_millis()).unwrap_or(u64::MAX),
                "ttl_step_ms": u64::try_from(g.ttl_step.as_millis()).unwrap_or(u64::MAX),
                "recovery_ms": u64::try_from(g.recovery.as_millis()).unwrap_or(u64::MAX),
                "atomic_multi": g.atomic_multi,
                "min_hold_outlives_process": g.min_hold_outlives_process,
                "notes": g.notes,
                "warnings": g.warnings,
            });
            return Ok((YES, json(&given)));
        }
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
        let kept =
            if g.min_hold_outlives_process { "by the store" } else { "by its process, for as long as that lives" };
        table.row(["a shortest hold is kept".into(), kept.into()]);
        let notes = if g.notes.is_empty() { String::new() } else { format!("\n{}\n", g.notes) };
        let warnings: String = g.warnings.iter().map(|warning| format!("\nwarning: {warning}\n")).collect();
        Ok((YES, format!("{at}\n{}{notes}{warnings}", shown(table))))
    })
    .await
}

/// A variant's name, as JSON has the other words.
fn snake_case(variant: &impl std::fmt::Debug) -> String {
    let mut word = String::new();
    for c in format!("{variant:?}").chars() {
        if c.is_uppercase() && !word.is_empty() {
            word.push('_');
        }
        word.extend(c.to_lowercase());
    }
    word
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

/// Asks a store, shows the answer, and says what is wrong if there is none.
async fn on(
    url: std::result::Result<StoreUrl, String>,
    ask: impl AsyncFnOnce(&Store, &str) -> Result<(Exit, String)>,
) -> io::Result<Exit> {
    let url = match url {
        Ok(url) => url,
        Err(what) => return Ok(exit::bad_usage(what)),
    };
    let asked: Result<(Exit, String), Error> = async {
        let store = open(&url).await?.store;
        let at = url.to_string();
        let answer = waiting::during(ask(&store, &at), "asking", &at).await;
        farewell(&store).await;
        answer
    }
    .await;
    match asked {
        Ok((exit, text)) => output::print(&text).map(|()| exit),
        Err(e) => {
            say(exit::of_store(&e, &url.named()));
            Ok(Exit::Code(exit::of_error(&e)))
        }
    }
}

fn shown(table: Table) -> String {
    table.text(output::has_colours(&stdout()))
}

fn json(value: &Value) -> String {
    output::safe_json(&format!("{value:#}\n"))
}

fn described(name: &str, line: &LockQueue) -> Value {
    let entry = |entry: &Participant| {
        json!({
            "label": entry.label,
            "token": entry.token.map(FencingToken::get),
            "since": entry.since.map(|at| humantime::format_rfc3339_millis(at).to_string()),
            "foreign": entry.foreign,
            "mode": entry.mode.map(|mode| match mode {
                Mode::Exclusive => "exclusive",
                Mode::Shared => "shared",
                Mode::Permits { .. } => "permits",
            }),
            "permits": permits(entry).map(|(n, _)| n),
            "of": permits(entry).map(|(_, of)| of),
        })
    };
    let all = |entries: &[Participant]| entries.iter().map(entry).collect::<Vec<_>>();
    json!({ "name": name, "holders": all(&line.holders), "waiters": all(&line.waiters) })
}

fn holder(entry: &Participant) -> String {
    match (&entry.label, entry.foreign) {
        (Some(label), false) => label.clone(),
        (Some(label), true) => format!("{label} (another tool)"),
        (None, true) => "another tool".into(),
        (None, false) => "somebody".into(),
    }
}

fn permits(entry: &Participant) -> Option<(u32, u32)> {
    match entry.mode {
        Some(Mode::Permits { n, of }) => Some((n, of)),
        _ => None,
    }
}

/// How many permits these have together, and how many there are.
fn taken(holders: &[Participant]) -> Option<(u32, u32)> {
    let of = holders.iter().filter_map(permits).map(|(_, of)| of).min()?;
    Some((holders.iter().filter_map(permits).map(|(n, _)| n).fold(0, u32::saturating_add), of))
}

fn mode(entry: &Participant) -> String {
    match entry.mode {
        Some(Mode::Exclusive) => "alone".into(),
        Some(Mode::Shared) => "shared".into(),
        Some(Mode::Permits { n, of }) => format!("{n} of {of}"),
        None => "-".into(),
    }
}

fn token(entry: Option<&Participant>) -> String {
    entry.and_then(|entry| entry.token).map_or_else(|| "-".into(), |token| token.to_string())
}

/// By the store's clock and ours: good enough for people.
fn since(entry: &Participant) -> String {
    let Some(at) = entry.since else { return "-".into() };
    let age = SystemTime::now().duration_since(at).unwrap_or_default();
    let age = humantime::format_duration(std::time::Duration::from_secs(age.as_secs()));
    format!("{} ({age} ago)", humantime::format_rfc3339_seconds(at))
}
