//! The commands that scripts and clients of Leasehold use, and those that a test needs beside them.

use crate::redis::reply::{Reply, integer};
use crate::redis::state::{State, no_integer, syntax};
use crate::redis::{collections, texts};

/// A known command: its name, its number of words (less than 0: at least that many), whether it
/// writes, and whether it needs room.
type Known = (&'static str, isize, bool, bool);

const KNOWN: [Known; 39] = [
    ("ping", -1, false, false),
    ("echo", 2, false, false),
    ("time", 1, false, false),
    ("publish", 3, false, false),
    ("dbsize", 1, false, false),
    ("keys", 2, false, false),
    ("scan", -2, false, false),
    ("flushall", -1, true, false),
    ("flushdb", -1, true, false),
    ("get", 2, false, false),
    ("set", -3, true, true),
    ("setrange", 4, true, true),
    ("strlen", 2, false, false),
    ("incr", 2, true, true),
    ("incrby", 3, true, true),
    ("mget", -2, false, false),
    ("del", -2, true, false),
    ("unlink", -2, true, false),
    ("rename", 3, true, false),
    ("exists", -2, false, false),
    ("type", 2, false, false),
    ("pexpire", -3, true, false),
    ("expire", -3, true, false),
    ("pttl", 2, false, false),
    ("hset", -4, true, true),
    ("hget", 3, false, false),
    ("hmget", -3, false, false),
    ("hgetall", 2, false, false),
    ("hdel", -3, true, false),
    ("hlen", 2, false, false),
    ("rpush", -3, true, true),
    ("llen", 2, false, false),
    ("zadd", -4, true, true),
    ("zrem", -3, true, false),
    ("zcard", 2, false, false),
    ("zscore", 3, false, false),
    ("zrange", -4, false, false),
    ("zrevrange", -4, false, false),
    ("zrangebyscore", -4, false, false),
];
const BY_SCORE: Known = ("zremrangebyscore", 4, true, false);

/// Executes one command.
pub(crate) fn execute(state: &mut State, words: &[Vec<u8>], in_script: bool) -> Reply {
    let Some((name, args)) = words.split_first() else {
        return Reply::error("ERR empty command");
    };
    let called = String::from_utf8_lossy(name).to_ascii_lowercase();
    let known = KNOWN
        .iter()
        .chain([&BY_SCORE])
        .find(|known| known.0 == called);
    let Some(&(name, many, writes, grows)) = known else {
        return if in_script {
            Reply::error("ERR Unknown Redis command called from script")
        } else {
            Reply::error(format!(
                "ERR unknown command '{}', with args beginning with: ",
                String::from_utf8_lossy(name)
            ))
        };
    };
    let said = words.len();
    if many > 0 && said != many.unsigned_abs() || said < many.unsigned_abs() {
        return if in_script {
            Reply::error("ERR Wrong number of args calling Redis command from script")
        } else {
            Reply::error(format!(
                "ERR wrong number of arguments for '{name}' command"
            ))
        };
    }
    if state.full && grows && !(in_script && state.wrote) {
        return Reply::error("OOM command not allowed when used memory > 'maxmemory'.");
    }
    state.wrote |= in_script && writes;
    let answer = match name {
        "get" | "set" | "setrange" | "strlen" | "incr" | "incrby" | "mget" => {
            texts::execute(state, name, args)
        }
        "ping" | "echo" | "time" | "publish" | "dbsize" | "keys" | "scan" | "flushall"
        | "flushdb" | "del" | "unlink" | "rename" | "exists" | "type" | "pexpire" | "expire"
        | "pttl" => of_keys(state, name, args),
        _ => collections::execute(state, name, args),
    };
    answer.unwrap_or_else(|error| error)
}

fn of_keys(state: &mut State, name: &str, args: &[Vec<u8>]) -> Result<Reply, Reply> {
    let now = state.now();
    Ok(match name {
        "ping" => args
            .first()
            .map_or_else(|| Reply::Status("PONG".to_owned()), Reply::bulk),
        "echo" => Reply::bulk(&args[0]),
        "time" => {
            let seconds = state.micros / 1_000_000;
            let rest = state.micros % 1_000_000;
            Reply::Array(vec![
                Reply::bulk(seconds.to_string()),
                Reply::bulk(rest.to_string()),
            ])
        }
        "publish" => publish(state, &args[0], &args[1]),
        "dbsize" => Reply::Int(state.data.all(now).len() as i64),
        "keys" => {
            let all = state
                .data
                .all(now)
                .into_iter()
                .filter(|(key, _)| matches(&args[0], key));
            Reply::Array(all.map(|(key, _)| Reply::Bulk(key)).collect())
        }
        "scan" => return scan(state, args),
        "flushall" | "flushdb" => {
            state.data.clear();
            Reply::ok()
        }
        "del" | "unlink" => count(args, |key| state.data.remove(key, now)),
        "rename" if state.data.rename(&args[0], &args[1], now) => Reply::ok(),
        "rename" => return Err(Reply::error("ERR no such key")),
        "exists" => count(args, |key| state.data.get(key, now).is_some()),
        "type" => Reply::Status(
            state
                .data
                .get(&args[0], now)
                .map_or("none", |value| value.kind())
                .to_owned(),
        ),
        "pexpire" | "expire" => {
            let unit = if name == "expire" { 1000 } else { 1 };
            let lasts = integer(&args[1]).ok_or_else(no_integer)?;
            let at = lasts
                .checked_mul(unit)
                .and_then(|lasts| lasts.checked_add(now));
            let wrong = || Reply::error(format!("ERR invalid expire time in '{name}' command"));
            if args.len() > 2 {
                return Err(Reply::error(format!(
                    "ERR Unsupported option {}",
                    String::from_utf8_lossy(&args[2])
                )));
            }
            Reply::Int(
                state
                    .data
                    .expire_at(&args[0], at.ok_or_else(wrong)?, now)
                    .into(),
            )
        }
        _ => Reply::Int(match state.data.expires(&args[0], now) {
            None => -2,
            Some(None) => -1,
            Some(Some(at)) => (at - now).max(0),
        }),
    })
}

fn count(keys: &[Vec<u8>], mut is_so: impl FnMut(&[u8]) -> bool) -> Reply {
    Reply::Int(keys.iter().filter(|key| is_so(key)).count() as i64)
}

fn publish(state: &mut State, channel: &[u8], message: &[u8]) -> Reply {
    let subscribers = state.subscribers.get(channel).into_iter().flatten();
    let push = Reply::Push(vec![
        Reply::bulk("message"),
        Reply::bulk(channel),
        Reply::bulk(message),
    ]);
    let before = state.pushes.len();
    state
        .pushes
        .extend(subscribers.map(|subscriber| (*subscriber, push.clone())));
    Reply::Int((state.pushes.len() - before) as i64)
}

/// Returns all keys at once, which is within the promise of `SCAN`.
fn scan(state: &mut State, args: &[Vec<u8>]) -> Result<Reply, Reply> {
    integer(&args[0]).ok_or_else(|| Reply::error("ERR invalid cursor"))?;
    let mut pattern = None;
    let mut kind = None;
    for pair in args[1..].chunks(2) {
        let [word, value] = pair else {
            return Err(syntax());
        };
        match word.to_ascii_lowercase().as_slice() {
            b"match" => pattern = Some(value),
            b"type" => kind = Some(value.to_ascii_lowercase()),
            b"count" if integer(value).is_some_and(|many| many > 0) => {}
            _ => return Err(syntax()),
        }
    }
    let now = state.now();
    let found = state.data.all(now).into_iter().filter(|(key, of)| {
        pattern.is_none_or(|pattern| matches(pattern, key))
            && kind.as_ref().is_none_or(|kind| kind == of.as_bytes())
    });
    let found = found.map(|(key, _)| Reply::Bulk(key)).collect();
    Ok(Reply::Array(vec![Reply::bulk("0"), Reply::Array(found)]))
}

/// Returns whether a text matches a pattern: `*`, `?`, `[a-z]`, `[^…]`, and `\` before a character
/// that stands for itself.
fn matches(pattern: &[u8], text: &[u8]) -> bool {
    match pattern {
        [] => text.is_empty(),
        [b'*', rest @ ..] => (0..=text.len()).any(|at| matches(rest, &text[at..])),
        [b'?', rest @ ..] => !text.is_empty() && matches(rest, &text[1..]),
        [b'[', rest @ ..] => {
            let end = rest.iter().position(|it| *it == b']').unwrap_or(rest.len());
            let class = &rest[..end];
            let rest = rest.get(end + 1..).unwrap_or_default();
            let Some((first, left)) = text.split_first() else {
                return false;
            };
            in_class(class, *first) && matches(rest, left)
        }
        [b'\\', one, rest @ ..] | [one, rest @ ..] => {
            text.first() == Some(one) && matches(rest, &text[1..])
        }
    }
}

fn in_class(class: &[u8], byte: u8) -> bool {
    let (is_not, mut class) = match class {
        [b'^', rest @ ..] => (true, rest),
        class => (false, class),
    };
    let mut found = false;
    loop {
        class = match class {
            [] => return found != is_not,
            [b'\\', one, rest @ ..] => {
                found |= *one == byte;
                rest
            }
            [from, b'-', to, rest @ ..] => {
                found |= (*from.min(to)..=*from.max(to)).contains(&byte);
                rest
            }
            [one, rest @ ..] => {
                found |= *one == byte;
                rest
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_those_of_redis() {
        for (pattern, text, is_like) in [
            ("*", "", true),
            ("a*c", "abbc", true),
            ("a*c", "abbd", false),
            ("{a}:l", "{a}:l", true),
            ("a?", "a", false),
            ("a\\*", "a*", true),
            ("a\\*", "ab", false),
            ("[a-c]x", "bx", true),
            ("[^a-c]x", "bx", false),
        ] {
            assert_eq!(
                matches(pattern.as_bytes(), text.as_bytes()),
                is_like,
                "{pattern} {text}"
            );
        }
    }
}
