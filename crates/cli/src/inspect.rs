//! `ls`, `who`, `break`, `forget` and `guarantees`: the answers of a store, as tables for people and as JSON
//! for programs.

use std::collections::BTreeMap;
use std::io::{self, stdout};
use std::time::Duration;

use leasehold::backend::Mode;
use leasehold::{
    ErrorKind, Fairness, Fencing, FencingToken, LockQueue, Name, Participant, Result, Store,
};
use leasehold_core::Completion;
use serde_json::{Value, json};

use crate::args::{Break, ByToken, Forget, Guarantees, List, Who};
use crate::exit::{self, Exit, say};
use crate::open::{close, open_to_look};
use crate::output;
use crate::participant::{holder, mode, permits, shown_since, since, token};
use crate::record;
use crate::store_url::{self, StoreUrl};
use crate::table::Table;
use crate::waiting;

/// The answer is no: the lock is free, or there was no such hold.
const NO: Exit = Exit::Code(1);
const YES: Exit = Exit::Code(0);

pub(crate) async fn ls(args: List) -> io::Result<Exit> {
    on(StoreUrl::existing(&args.store), async |store, _| {
        let after = args.after.as_deref().map(Name::new);
        let limit = args.limit as usize;
        let held = store.list(&args.prefix, after.as_ref(), limit + 1).await?;
        let done = match store.guarantees().once() {
            true => told(store.list_done(&args.prefix, after.as_ref(), limit + 1).await)?,
            false => None,
        };
        let (mut entries, is_cut) = merged(held, done.unwrap_or_default(), limit);
        if is_cut {
            let last = entries.last().map(|it| it.name.to_string()).unwrap_or_default();
            say(format_args!("these are the first {limit}; --after {last:?} shows the next, --limit N more at once"));
        }
        for entry in entries.iter_mut().filter(|it| it.is_held) {
            match store.lock(&entry.name).inspect().await {
                Ok(queue) => entry.queue = Some(queue),
                // Something that no client of ours made must not hide the rest.
                Err(e) if e.kind() == ErrorKind::Invalid => say(format_args!("{e}")),
                Err(e) => return Err(e),
            }
        }
        entries.retain(|it| it.queue.is_some() || it.done.is_some());
        if args.json {
            let all = entries.iter().map(|it| {
                let free = LockQueue::default();
                described(it.name.as_str(), it.queue.as_ref().unwrap_or(&free), it.done.as_ref())
            });
            return Ok((YES, json(&all.collect())));
        }
        let queues = entries.iter().filter_map(|it| it.queue.as_ref().map(|queue| (&it.name, queue)));
        let mut table = Table::new(["NAME", "HOLDER", "TOKEN", "SINCE", "WAITING"]);
        for (name, queue) in queues {
            let [holder, token, since] = match &queue.holders[..] {
                [] => ["-", "-", "-"].map(String::from),
                [one] => [holder(one), token(one), since(one)],
                [first, more @ ..] => {
                    [format!("{} and {} more", holder(first), more.len()), token(first), since(first)]
                }
            };
            table.row([name.to_string(), holder, token, since, queue.waiters.len().to_string()]);
        }
        let done = entries.iter().filter_map(|it| it.done.as_ref().map(|done| (it.name.as_str(), done)));
        Ok((YES, shown(table) + &records(done, false)))
    })
    .await
}

/// One name of a list.
struct Listed {
    name: Name,
    /// The store lists it as held or waited for.
    is_held: bool,
    queue: Option<LockQueue>,
    done: Option<Completion>,
}

/// The first names of both lists, each of which has one more if there are more; and whether there
/// are more.
fn merged(held: Vec<Name>, done: Vec<(Name, Completion)>, limit: usize) -> (Vec<Listed>, bool) {
    let mut all: BTreeMap<Name, (bool, Option<Completion>)> = BTreeMap::new();
    for name in held {
        all.entry(name).or_default().0 = true;
    }
    for (name, done) in done {
        all.entry(name).or_default().1 = Some(done);
    }
    let is_cut = all.len() > limit;
    let first = all.into_iter().take(limit);
    let listed = first.map(|(name, (is_held, done))| Listed {
        name,
        is_held,
        queue: None,
        done,
    });
    (listed.collect(), is_cut)
}

/// The answer about records. One that cannot be read must not hide who holds.
fn told<T>(answer: Result<T>) -> Result<Option<T>> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(e) if matches!(e.kind(), ErrorKind::Invalid | ErrorKind::Internal) => {
            say(format_args!(
                "records of work that is done: {}",
                exit::chain(&e)
            ));
            Ok(None)
        }
        Err(e) => Err(e),
    }
}

/// A table of records below another table; empty if there are none.
fn records<'a>(done: impl Iterator<Item = (&'a str, &'a Completion)>, whole: bool) -> String {
    let mut rows = done
        .map(|(name, done)| record::row(name, done, whole))
        .peekable();
    if rows.peek().is_none() {
        return String::new();
    }
    let mut table = Table::new(record::HEADING);
    rows.for_each(|row| table.row(row));
    format!("\n{}", shown(table))
}

pub(crate) async fn who(args: Who) -> io::Result<Exit> {
    on(StoreUrl::existing(&args.store), async |store, at| {
        let queue = store.lock(&args.name).inspect().await?;
        let done = match store.guarantees().once() {
            true => told(store.once(&args.name).done().await)?.flatten(),
            false => None,
        };
        let verdict = if queue.holders.is_empty() { NO } else { YES };
        if args.json {
            let mut data = described(&args.name, &queue, done.as_ref());
            data["store_id"] = store_id(store);
            return Ok((verdict, json(&data)));
        }
        let records = records(done.iter().map(|done| (&*args.name, done)), true);
        if queue.holders.is_empty() && queue.waiters.is_empty() {
            if done.is_none() {
                say_what_ends_so(store, &args.name).await;
            }
            return Ok((verdict, format!("{:?} at {at}: free\n{records}", args.name)));
        }
        let mut table = Table::new(["", "LABEL", "MODE", "TOKEN", "SINCE"]);
        for entry in &queue.holders {
            table.row([
                "holds".into(),
                holder(entry),
                mode(entry),
                token(entry),
                since(entry),
            ]);
        }
        for (place, entry) in queue.waiters.iter().enumerate() {
            table.row([
                format!("waits {}", place + 1),
                holder(entry),
                mode(entry),
                "-".into(),
                since(entry),
            ]);
        }
        let taken = taken(&queue.holders).map_or_else(String::new, |(n, of)| {
            format!(": {n} of {of} permits are taken")
        });
        Ok((
            verdict,
            format!("{:?} at {at}{taken}\n{}{records}", args.name, shown(table)),
        ))
    })
    .await
}

/// The number of names that are searched for one that was meant, and the time limit of that search.
const LOOKED_AT: usize = 1000;
const LOOK: Duration = Duration::from_millis(500);

/// Reports locks whose names end with this one. Programs name a lock without the namespace or
/// prefix that stands before it in the store, in errors too, so the free lock may not be the one
/// that was meant.
async fn say_what_ends_so(store: &Store, name: &str) {
    let Ok(Ok(names)) = tokio::time::timeout(LOOK, store.list("", None, LOOKED_AT)).await else {
        return;
    };
    for longer in names
        .iter()
        .filter(|it| ends_with_part(it.as_str(), name))
        .take(3)
    {
        say(format_args!(
            "it is free; but a lock of a namespace ends so: `leasehold who {longer}`"
        ));
    }
}

/// Returns whether the longer name ends with this one, after a separator.
fn ends_with_part(longer: &str, name: &str) -> bool {
    longer
        .strip_suffix(name)
        .is_some_and(|before| before.ends_with(|c: char| !c.is_alphanumeric()))
}

pub(crate) async fn evict(args: Break) -> io::Result<Exit> {
    on(StoreUrl::existing(&args.at.store), async |store, at| {
        let ended = store.evict(&args.at.name, args.at.token()).await?;
        Ok(by_token(&args.at, at, ["hold", "ended"], ended))
    })
    .await
}

pub(crate) async fn forget(args: Forget) -> io::Result<Exit> {
    on(StoreUrl::existing(&args.at.store), async |store, at| {
        let once = store.once(&args.at.name);
        let forgotten = once.forget(args.at.token()).await?;
        Ok(by_token(&args.at, at, ["record", "forgotten"], forgotten))
    })
    .await
}

/// The answer to a request for the thing with a token: its kind, and what was to happen to it.
fn by_token(args: &ByToken, at: &str, [kind, verb]: [&str; 2], happened: bool) -> (Exit, String) {
    let name = &args.name;
    let token = args.token();
    let verdict = if happened { YES } else { NO };
    if args.json {
        let answer = json!({ "name": name, "token": token.get(), verb: happened });
        return (verdict, json(&answer));
    }
    let what = if happened {
        format!("the {kind} with token {token} was {verb}")
    } else {
        format!("there is no {kind} with token {token}")
    };
    (verdict, format!("{name:?} at {at}: {what}\n"))
}

pub(crate) async fn guarantees(args: Guarantees) -> io::Result<Exit> {
    let mut store = args.store;
    store.url = args.of.or(store.url);
    if let Some((kind, form)) = store.url.as_deref().and_then(store_url::kind) {
        return Ok(exit::bad_usage(format_args!(
            "{kind} is a kind of store. What one guarantees depends on its server and its settings, which are asked: name it, as in {form}. \
             What each kind promises is in {}/blob/main/docs/guarantees.md",
            env!("CARGO_PKG_REPOSITORY")
        )));
    }
    on(StoreUrl::any(&store), async |store, at| {
        let g = store.guarantees();
        if args.json {
            let mut data = json!(g);
            data["store_id"] = store_id(store);
            return Ok((YES, json(&data)));
        }
        let mut table = Table::new(["", g.store()]);
        let mut row = |what: &str, how: String| table.row([what.into(), how]);
        if let Some(id) = store.identity() {
            row("identity", id.to_string());
        }
        row("tokens rise", fencing(g.fencing()).into());
        row("waiters are served", fairness(g.fairness()).into());
        row(
            "a release is noticed",
            if g.pushed_wake() {
                "by a push of the store"
            } else {
                "by polling"
            }
            .into(),
        );
        row("shortest lease", format!("{:?}", g.min_ttl()));
        if let Some(longest) = g.max_ttl() {
            row(
                "longest lease",
                format!("{longest:?}; a longer one is shortened to it"),
            );
        }
        row("leases are multiples of", format!("{:?}", g.ttl_step()));
        row(
            "a dead holder's lock is free",
            format!("at most {:?} after its lease", g.recovery()),
        );
        let at_once = match g.atomic_multi() {
            0 | 1 => "one after the other".into(),
            usize::MAX => "in one step".into(),
            most => format!("in one step, up to {most}"),
        };
        row("several names are acquired", at_once);
        let alone = g.min_hold_outlives_process();
        let kept = if alone {
            "by the store"
        } else {
            "by its process, for as long as that lives"
        };
        row("a shortest hold is kept", kept.into());
        let recorded = if g.once() {
            "yes"
        } else {
            "no: `once` is refused"
        };
        row("work that is done is recorded", recorded.into());
        if let Some(connections) = g.connections() {
            let most = connections.at_most;
            let idle = connections.idle;
            row("connections", format!("at most {most}, {idle} while idle"));
        }
        let notes = if g.notes().is_empty() {
            String::new()
        } else {
            format!("\n{}\n", g.notes())
        };
        let warnings: String = g
            .warnings()
            .iter()
            .map(|warning| format!("\nwarning: {warning}\n"))
            .collect();
        Ok((YES, format!("{at}\n{}{notes}{warnings}", shown(table))))
    })
    .await
}

fn fencing(fencing: Fencing) -> &'static str {
    match fencing {
        Fencing::None => "not surely",
        Fencing::WhileDataLives => "as long as the store keeps its data",
        Fencing::SurvivesDataLoss => {
            "also when the store has lost its data, unless its clock steps back past it"
        }
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

/// Asks a store, and shows the answer, or the error if there is none.
async fn on(
    url: std::result::Result<StoreUrl, String>,
    ask: impl AsyncFnOnce(&Store, &str) -> Result<(Exit, String)>,
) -> io::Result<Exit> {
    let url = match url {
        Ok(url) => url,
        Err(what) => return Ok(exit::bad_usage(what)),
    };
    let asked = async {
        let store = open_to_look(&url).await?;
        let at = url.to_string();
        let answer = waiting::during(ask(&store, &at), "asking", &at).await;
        close(&store).await;
        answer
    };
    match asked.await {
        Ok((exit, text)) => output::print(&text).map(|()| exit),
        Err(e) => {
            say(exit::about(&e, &url));
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

/// The identity of the store, if it has one.
fn store_id(store: &Store) -> Value {
    json!(store.identity().map(|id| id.to_string()))
}

fn described(name: &str, queue: &LockQueue, done: Option<&Completion>) -> Value {
    let entry = |entry: &Participant| {
        json!({
            "label": entry.label,
            "token": entry.token.map(FencingToken::get),
            "since": shown_since(entry).map(|at| humantime::format_rfc3339_millis(at).to_string()),
            "foreign": entry.foreign,
            "evict_by": entry.evict_by.map(FencingToken::get),
            "ends_in_ms": entry.ends_in.filter(|left| *left < Duration::MAX).map(|left| left.as_millis() as u64),
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
    json!({
        "name": name,
        "holders": all(&queue.holders),
        "waiters": all(&queue.waiters),
        "done": done.map(record::described),
    })
}

/// The number of permits that these holders have together, and the number of all permits.
fn taken(holders: &[Participant]) -> Option<(u32, u32)> {
    let of = holders.iter().filter_map(permits).map(|(_, of)| of).min()?;
    Some((
        holders
            .iter()
            .filter_map(permits)
            .map(|(n, _)| n)
            .fold(0, u32::saturating_add),
        of,
    ))
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use leasehold_fuzz::fuzz_text;

    use super::*;

    #[test]
    fn names_that_are_held_and_names_that_are_done_are_one_list() {
        let done = |name: &str| {
            let done = Completion::new(FencingToken::new(7), "me", SystemTime::now());
            (Name::new(name), done)
        };
        let names = |limit: usize| {
            let held = ["b", "d"].map(Name::new).to_vec();
            let (listed, is_cut) = merged(held, vec![done("a"), done("b"), done("e")], limit);
            let of = |it: &Listed| {
                let held = if it.is_held { "h" } else { "" };
                let done = if it.done.is_some() { "d" } else { "" };
                format!("{}:{held}{done}", it.name)
            };
            (listed.iter().map(of).collect::<Vec<_>>().join(" "), is_cut)
        };
        assert_eq!(names(4), ("a:d b:hd d:h e:d".into(), false));
        assert_eq!(names(3), ("a:d b:hd d:h".into(), true));
        assert_eq!(names(1), ("a:d".into(), true));
    }

    #[test]
    fn names_that_end_with_a_name() {
        for (longer, name, expected) in [
            ("shop/orders/5", "orders/5", true),
            ("app:orders/5", "orders/5", true),
            ("workorders/5", "orders/5", false),
            ("orders/5", "orders/5", false),
            ("orders/5/x", "orders/5", false),
        ] {
            assert_eq!(ends_with_part(longer, name), expected, "{longer}");
        }
    }

    #[test]
    fn what_another_tool_wrote_is_shown_with_its_end_and_the_number_that_ends_it() {
        let mut theirs = Participant::foreign().evict_by(FencingToken::new(7));
        assert_eq!(
            (holder(&theirs), token(&theirs)),
            ("another tool".into(), "7".into())
        );
        theirs.label = Some("visits: 5".into());
        for (ends_in, expected) in [
            (
                Duration::from_millis(2500),
                "visits: 5 (another tool's, for 2s more)",
            ),
            (Duration::MAX, "visits: 5 (another tool's, without an end)"),
        ] {
            assert_eq!(holder(&theirs.clone().ends_in(ends_in)), expected);
        }
        let shown = described("x", &LockQueue::new(vec![theirs], vec![]), None);
        assert_eq!(shown["holders"][0]["evict_by"], 7);
    }

    #[test]
    fn whatever_an_entry_says_it_is_shown() {
        fuzz_text(
            "1795000000000\n0\n253402300799999\n253402300800000\n18446744073709551615\n",
            |text| {
                let millis = text.parse().unwrap_or(text.len() as u64);
                let mode =
                    Mode::from_parts("permits", millis as u32, u32::MAX).unwrap_or(Mode::Shared);
                let since = SystemTime::UNIX_EPOCH + Duration::from_millis(millis);
                let entry = Participant::new(text)
                    .since(since)
                    .mode(mode)
                    .token(FencingToken::new(millis));
                assert!(!crate::participant::since(&entry).is_empty());
                let all = vec![entry; 3];
                assert!(taken(&all).is_none_or(|(taken, of)| taken <= of));
                let shown = json(&described(text, &LockQueue::new(all.clone(), all), None));
                assert_eq!(serde_json::from_str::<Value>(&shown).unwrap()["name"], text);
            },
        );
    }
}
