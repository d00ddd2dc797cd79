//! The commands of hashes, sorted sets and lists.

use crate::redis::reply::{Reply, integer, score};
use crate::redis::state::{State, no_integer, syntax};

pub(crate) fn execute(state: &mut State, name: &str, args: &[Vec<u8>]) -> Result<Reply, Reply> {
    let now = state.now();
    let key = &args[0];
    let rest = &args[1..];
    let data = &mut state.data;
    Ok(match name {
        "hset" => {
            if !rest.len().is_multiple_of(2) {
                return Err(Reply::error(
                    "ERR wrong number of arguments for 'hset' command",
                ));
            }
            let put = |hash: &mut std::collections::BTreeMap<_, _>| {
                rest.chunks(2)
                    .filter(|pair| hash.insert(pair[0].clone(), pair[1].clone()).is_none())
                    .count()
            };
            Reply::Int(data.change_hash(key, now, put)? as i64)
        }
        "hget" => Reply::of(data.hash(key, now)?.and_then(|hash| hash.get(&rest[0]))),
        "hmget" => {
            let hash = data.hash(key, now)?;
            Reply::Array(
                rest.iter()
                    .map(|field| Reply::of(hash.and_then(|hash| hash.get(field))))
                    .collect(),
            )
        }
        "hgetall" => {
            let all = data.hash(key, now)?.into_iter().flatten();
            Reply::Map(
                all.map(|(field, value)| (Reply::bulk(field), Reply::bulk(value)))
                    .collect(),
            )
        }
        "hlen" => Reply::Int(data.hash(key, now)?.map_or(0, |hash| hash.len()) as i64),
        "hdel" => {
            let gone = data.change_hash(key, now, |hash| {
                rest.iter()
                    .filter(|field| hash.remove(*field).is_some())
                    .count()
            })?;
            Reply::Int(gone as i64)
        }
        "rpush" => Reply::Int(data.change_list(key, now, |list| {
            list.extend(rest.iter().cloned());
            list.len()
        })? as i64),
        "llen" => Reply::Int(data.list(key, now)?.map_or(0, |list| list.len()) as i64),
        "zadd" => return add(state, key, rest),
        "zrem" => {
            let gone = data.change_sorted(key, now, |sorted| {
                rest.iter().filter(|it| sorted.remove(it)).count()
            })?;
            Reply::Int(gone as i64)
        }
        "zcard" => Reply::Int(
            data.sorted(key, now)?
                .map_or(0, |sorted| sorted.scores.len()) as i64,
        ),
        "zscore" => {
            let found = data
                .sorted(key, now)?
                .and_then(|sorted| sorted.scores.get(&rest[0]));
            found.map_or(Reply::Nil, |score| Reply::Double(*score))
        }
        "zremrangebyscore" => {
            let from = Bound::of(&rest[0])?;
            let to = Bound::of(&rest[1])?;
            let gone = data.change_sorted(key, now, |sorted| {
                let inside = sorted
                    .in_order()
                    .filter(|(_, score)| from.is_below(*score) && to.is_above(*score));
                let gone: Vec<_> = inside.map(|(member, _)| member.clone()).collect();
                gone.iter().filter(|member| sorted.remove(member)).count()
            })?;
            Reply::Int(gone as i64)
        }
        "zrangebyscore" => return by_score(state, key, rest),
        _ => return by_rank(state, key, rest, name == "zrevrange"),
    })
}

fn add(state: &mut State, key: &[u8], pairs: &[Vec<u8>]) -> Result<Reply, Reply> {
    if !pairs.len().is_multiple_of(2) {
        return Err(syntax());
    }
    let no_number = || Reply::error("ERR value is not a valid float");
    let scores: Vec<f64> = pairs
        .chunks(2)
        .map(|pair| score(&pair[0]).ok_or_else(no_number))
        .collect::<Result<_, _>>()?;
    let now = state.now();
    let added = state.data.change_sorted(key, now, |sorted| {
        pairs
            .chunks(2)
            .zip(scores)
            .filter(|(pair, score)| sorted.put(&pair[1], *score))
            .count()
    })?;
    Ok(Reply::Int(added as i64))
}

/// One end of a range of scores.
struct Bound {
    at: f64,
    without: bool,
}

impl Bound {
    fn of(text: &[u8]) -> Result<Bound, Reply> {
        let (without, number) = match text {
            [b'(', number @ ..] => (true, number),
            number => (false, number),
        };
        let at = score(number).ok_or_else(|| Reply::error("ERR min or max is not a float"))?;
        Ok(Bound { at, without })
    }

    fn is_below(&self, score: f64) -> bool {
        if self.without {
            self.at < score
        } else {
            self.at <= score
        }
    }

    fn is_above(&self, score: f64) -> bool {
        if self.without {
            self.at > score
        } else {
            self.at >= score
        }
    }
}

fn by_score(state: &mut State, key: &[u8], args: &[Vec<u8>]) -> Result<Reply, Reply> {
    let from = Bound::of(&args[0])?;
    let to = Bound::of(&args[1])?;
    let mut with_scores = false;
    let mut skip = 0;
    let mut most = -1;
    let mut words = args[2..].iter();
    while let Some(word) = words.next() {
        match word.to_ascii_lowercase().as_slice() {
            b"withscores" => with_scores = true,
            b"limit" => {
                let mut number =
                    || integer(words.next().ok_or_else(syntax)?).ok_or_else(no_integer);
                (skip, most) = (number()?, number()?);
            }
            _ => return Err(syntax()),
        }
    }
    let now = state.now();
    let Some(sorted) = state.data.sorted(key, now)? else {
        return Ok(Reply::Array(Vec::new()));
    };
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let Ok(skip) = usize::try_from(skip) else {
        return Ok(Reply::Array(Vec::new()));
    };
    let inside = sorted
        .in_order()
        .filter(|(_, score)| from.is_below(*score) && to.is_above(*score));
    Ok(listed(inside.skip(skip).take(most), with_scores))
}

fn by_rank(
    state: &mut State,
    key: &[u8],
    args: &[Vec<u8>],
    backwards: bool,
) -> Result<Reply, Reply> {
    let first = integer(&args[0]).ok_or_else(no_integer)?;
    let last = integer(&args[1]).ok_or_else(no_integer)?;
    let with_scores = match &args[2..] {
        [] => false,
        [word] if word.eq_ignore_ascii_case(b"withscores") => true,
        _ => return Err(syntax()),
    };
    let now = state.now();
    let Some(sorted) = state.data.sorted(key, now)? else {
        return Ok(Reply::Array(Vec::new()));
    };
    let many = sorted.scores.len() as i64;
    // A negative position counts from the end.
    let from_end = |at: i64| if at < 0 { many.saturating_add(at) } else { at };
    let first = from_end(first).max(0);
    let last = from_end(last).min(many - 1);
    if first > last {
        return Ok(Reply::Array(Vec::new()));
    }
    let skip = first as usize;
    let most = (last - first + 1) as usize;
    Ok(if backwards {
        listed(sorted.in_order().rev().skip(skip).take(most), with_scores)
    } else {
        listed(sorted.in_order().skip(skip).take(most), with_scores)
    })
}

fn listed<'a>(members: impl Iterator<Item = (&'a Vec<u8>, f64)>, with_scores: bool) -> Reply {
    if with_scores {
        return Reply::Pairs(
            members
                .map(|(member, score)| (Reply::bulk(member), Reply::Double(score)))
                .collect(),
        );
    }
    Reply::Array(members.map(|(member, _)| Reply::bulk(member)).collect())
}
