//! The commands of texts and numbers.

use crate::redis::data::Value;
use crate::redis::reply::{Reply, integer};
use crate::redis::state::{State, no_integer, syntax};

/// The longest text, in bytes.
const LONGEST: i64 = 512 << 20;

pub(crate) fn execute(state: &mut State, name: &str, args: &[Vec<u8>]) -> Result<Reply, Reply> {
    let now = state.now();
    let key = &args[0];
    Ok(match name {
        "get" => Reply::of(state.data.text(key, now)?),
        "strlen" => Reply::Int(state.data.text(key, now)?.map_or(0, Vec::len) as i64),
        "mget" => {
            let one = |key: &Vec<u8>| Reply::of(state.data.text(key, now).ok().flatten());
            Reply::Array(args.iter().map(one).collect())
        }
        "set" => return set(state, key, &args[1], &args[2..]),
        "setrange" => return set_range(state, key, &args[1], &args[2]),
        "incr" => return add(state, key, 1),
        _ => {
            let by = integer(&args[1]).ok_or_else(no_integer)?;
            return add(state, key, by);
        }
    })
}

fn set(state: &mut State, key: &[u8], value: &[u8], options: &[Vec<u8>]) -> Result<Reply, Reply> {
    let now = state.now();
    let mut only_if = None;
    let mut expires = None;
    let mut keeps = false;
    let mut words = options.iter();
    while let Some(word) = words.next() {
        match word.to_ascii_lowercase().as_slice() {
            b"nx" if only_if != Some(true) => only_if = Some(false),
            b"xx" if only_if != Some(false) => only_if = Some(true),
            b"keepttl" if expires.is_none() => keeps = true,
            unit @ (b"px" | b"ex") if expires.is_none() && !keeps => {
                let lasts = integer(words.next().ok_or_else(syntax)?).ok_or_else(no_integer)?;
                let lasts = if unit == b"ex" {
                    lasts.checked_mul(1000)
                } else {
                    Some(lasts)
                };
                let at = lasts
                    .filter(|lasts| *lasts > 0)
                    .and_then(|lasts| lasts.checked_add(now));
                expires = Some(
                    at.ok_or_else(|| Reply::error("ERR invalid expire time in 'set' command"))?,
                );
            }
            _ => return Err(syntax()),
        }
    }
    let before = state.data.expires(key, now);
    if only_if.is_some_and(|there| there != before.is_some()) {
        return Ok(Reply::Nil);
    }
    let expires = if keeps { before.flatten() } else { expires };
    state.data.set(key, Value::Text(value.to_vec()), expires);
    Ok(Reply::ok())
}

fn set_range(state: &mut State, key: &[u8], at: &[u8], part: &[u8]) -> Result<Reply, Reply> {
    let now = state.now();
    let at = integer(at).ok_or_else(no_integer)?;
    if at < 0 {
        return Err(Reply::error("ERR offset is out of range"));
    }
    let long = state.data.text(key, now)?.map_or(0, Vec::len);
    if part.is_empty() {
        return Ok(Reply::Int(long as i64));
    }
    if at + part.len() as i64 > LONGEST {
        return Err(Reply::error(
            "ERR string exceeds maximum allowed size (proto-max-bulk-len)",
        ));
    }
    let (at, end) = (at as usize, at as usize + part.len());
    let long = state.data.change_text(key, now, |text| {
        text.resize(text.len().max(end), 0);
        text[at..end].copy_from_slice(part);
        text.len()
    })?;
    Ok(Reply::Int(long as i64))
}

fn add(state: &mut State, key: &[u8], by: i64) -> Result<Reply, Reply> {
    let now = state.now();
    let number = match state.data.text(key, now)? {
        None => 0,
        Some(text) => integer(text).ok_or_else(no_integer)?,
    };
    let sum = number.checked_add(by);
    let sum = sum.ok_or_else(|| Reply::error("ERR increment or decrement would overflow"))?;
    state
        .data
        .change_text(key, now, |text| *text = sum.to_string().into_bytes())?;
    Ok(Reply::Int(sum))
}
