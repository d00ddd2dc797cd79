//! `ls`, `who`, `break` and `guarantees`: what a store says, as tables for people and as JSON for programs.

use std::io::{self, stdout};
use std::time::{Duration, SystemTime};

use leasehold::seam::Mode;
use leasehold::{Fairness, Fencing, FencingToken, LockQueue, Name, Participant, Result, Store};
use leasehold_compare::Promises;
use serde_json::{Value, json};

use crate::args::{Break, Guarantees, List, Who};
use crate::exit::{self, Exit, say};
use crate::open::{close, open};
use crate::output;
use crate::store_url::StoreUrl;
use crate::table::Table;
use crate::waiting;

/// The answer is no: the lock is free, there was no such hold.
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
        let mut queues = Vec::new();
        for name in names {
            let queue = store.lock(&name).inspect().await?;
            queues.push((name, queue));
        }
        if args.json {
            return Ok((YES, json(&queues.iter().map(|(name, queue)| described(name.as_str(), queue)).collect())));
        }
        let mut table = Table::new(["NAME", "HOLDER", "TOKEN", "SINCE", "WAITING"]);
        for (name, queue) in &queues {
            let [holder, token, since] = match &queue.holders[..] {
                [] => ["-", "-", "-"].map(String::from),
                [one] => [holder(one), token(one), since(one)],
                [first, more @ ..] => {
                    [format!("{} and {} more", holder(first), more.len()), token(first), since(first)]
                }
            };
            table.row([name.to_string(), holder, token, since, queue.waiters.len().to_string()]);
        }
        Ok((YES, shown(table)))
    })
    .await
}

pub(crate) async fn who(args: Who) -> io::Result<Exit> {
    on(StoreUrl::existing(args.store.url.as_deref()), async |store, at| {
        let queue = store.lock(&args.name).inspect().await?;
        let verdict = if queue.holders.is_empty() { NO } else { YES };
        if args.json {
            return Ok((verdict, json(&described(&args.name, &queue))));
        }
        if queue.holders.is_empty() && queue.waiters.is_empty() {
            return Ok((verdict, format!("{:?} at {at}: free\n", args.name)));
        }
        let mut table = Table::new(["", "LABEL", "MODE", "TOKEN", "SINCE"]);
        for entry in &queue.holders {
            table.row(["holds".into(), holder(entry), mode(entry), token(entry), since(entry)]);
        }
        for (place, entry) in queue.waiters.iter().enumerate() {
            table.row([format!("waits {}", place + 1), holder(entry), mode(entry), "-".into(), since(entry)]);
        }
        let taken =
            taken(&queue.holders).map_or_else(String::new, |(n, of)| format!(": {n} of {of} permits are taken"));
        Ok((verdict, format!("{:?} at {at}{taken}\n{}", args.name, shown(table))))
    })
    .await
}

pub(crate) async fn evict(args: Break) -> io::Result<Exit> {
    on(StoreUrl::existing(args.store.url.as_deref()), async |store, at| {
        let (name, token) = (&args.name, args.token());
        let ended = store.evict(name, FencingToken::new(token)).await?;
        let verdict = if ended { YES } else { NO };
        if args.json {
            return Ok((verdict, json(&json!({ "name": name, "token": token, "ended": ended }))));
        }
        let hold = if args.foreign { "hold of another tool".into() } else { format!("hold with token {token}") };
        let what = if ended { format!("the {hold} was ended") } else { format!("there is no {hold}") };
        Ok((verdict, format!("{name:?} at {at}: {what}\n")))
    })
    .await
}

pub(crate) async fn guarantees(args: Guarantees) -> io::Result<Exit> {
    let url = args.of.or(args.store.url);
    on(StoreUrl::any(url.as_deref()), async |store, at| {
        let g = store.guarantees();
        if args.json {
            return Ok((YES, json(&json!(Promises::from(g)))));
        }
        let mut table = Table::new(["", g.store]);
        let mut row = |what: &str, how: String| table.row([what.into(), how]);
        row("tokens rise", fencing(g.fencing).into());
        row("waiters are served", fairness(g.fairness).into());
        row("a release is noticed", if g.pushed_wake { "by a push of the store" } else { "by polling" }.into());
        row("shortest lease", format!("{:?}", g.min_ttl));
        row("leases are multiples of", format!("{:?}", g.ttl_step));
        row("a dead holder's lock is free", format!("at most {:?} after its lease", g.recovery));
        let at_once = match g.atomic_multi {
            0 | 1 => "one after the other".into(),
            usize::MAX => "in one step".into(),
            most => format!("in one step, up to {most}"),
        };
        row("several names are acquired", at_once);
        let alone = g.min_hold_outlives_process;
        let kept = if alone { "by the store" } else { "by its process, for as long as that lives" };
        row("a shortest hold is kept", kept.into());
        let notes = if g.notes.is_empty() { String::new() } else { format!("\n{}\n", g.notes) };
        let warnings: String = g.warnings.iter().map(|warning| format!("\nwarning: {warning}\n")).collect();
        Ok((YES, format!("{at}\n{}{notes}{warnings}", shown(table))))
    })
    .await
}

fn fencing(fencing: Fencing) -> &'static str {
    match fencing {
        Fencing::None => "not surely",
        Fencing::WhileDataLives => "as long as the store keeps its data",
        Fencing::SurvivesDataLoss => "also when the store has lost its data, unless its clock steps back past it",
        _ => "as the store's documentation says",
    }
}

fn fairness(fairness: Fairness) -> &'static str {
    match fairness {
        Fairness::None => "in any order",
        Fairness::Bounded => "so that none is passed for ever",
        Fairness::Strict => "in the order in which they came",
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
    let asked = async {
        let store = open(&url).await?.store;
        let at = url.to_string();
        let answer = waiting::during(ask(&store, &at), "asking", &at).await;
        close(&store).await;
        answer
    };
    match asked.await {
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

fn described(name: &str, queue: &LockQueue) -> Value {
    let entry = |entry: &Participant| {
        json!({
            "label": entry.label,
            "token": entry.token.map(FencingToken::get),
            "since": shown_since(entry).map(|at| humantime::format_rfc3339_millis(at).to_string()),
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
    json!({ "name": name, "holders": all(&queue.holders), "waiters": all(&queue.waiters) })
}

fn holder(entry: &Participant) -> String {
    match (&entry.label, entry.foreign) {
        (Some(label), false) => label.clone(),
        (Some(label), true) => format!("{label} (another tool)"),
        (None, true) => "another tool".into(),
        (None, false) => "without a label".into(),
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
        Some(Mode::Exclusive) => "exclusive".into(),
        Some(Mode::Shared) => "shared".into(),
        Some(Mode::Permits { n, of }) => format!("{n} of {of}"),
        None => "-".into(),
    }
}

fn token(entry: &Participant) -> String {
    entry.token.map_or_else(|| "-".into(), |token| token.to_string())
}

/// Since when, if that is before the year 10000: what other tools wrote may be any number.
fn shown_since(entry: &Participant) -> Option<SystemTime> {
    let of_year_10000 = 253_402_300_800;
    entry.since.filter(|at| at.duration_since(SystemTime::UNIX_EPOCH).is_ok_and(|age| age.as_secs() < of_year_10000))
}

/// By the store's clock and ours: good enough for people.
fn since(entry: &Participant) -> String {
    let Some(at) = shown_since(entry) else { return "-".into() };
    let age = SystemTime::now().duration_since(at).unwrap_or_default();
    let age = humantime::format_duration(Duration::from_secs(age.as_secs()));
    format!("{} ({age} ago)", humantime::format_rfc3339_seconds(at))
}

#[cfg(test)]
mod tests {
    use leasehold_fuzz::fuzz_text;

    use super::*;

    #[test]
    fn whatever_an_entry_says_it_is_shown() {
        fuzz_text("1795000000000\n0\n253402300799999\n253402300800000\n18446744073709551615\n", |text| {
            let millis = text.parse().unwrap_or(text.len() as u64);
            let mode = Mode::from_parts("permits", millis as u32, u32::MAX).unwrap_or(Mode::Shared);
            let since = SystemTime::UNIX_EPOCH + Duration::from_millis(millis);
            let entry = Participant::new(text).since(since).mode(mode).token(FencingToken::new(millis));
            assert!(!super::since(&entry).is_empty());
            let all = vec![entry; 3];
            assert!(taken(&all).is_none_or(|(taken, of)| taken <= of));
            let shown = json(&described(text, &LockQueue::new(all.clone(), all)));
            assert_eq!(serde_json::from_str::<Value>(&shown).unwrap()["name"], text);
        });
    }
}
