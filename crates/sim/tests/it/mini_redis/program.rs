//! Random commands, and random scripts of them: mostly right ones, on few keys that have values of all types.

use fastrand::Rng;

/// Times after which a key is over within a moment, in milliseconds.
pub(crate) const SOON: [&str; 2] = ["1", "2"];

const KEYS: [&str; 6] = ["a", "b", "c", "{a}:l", "{}:f", "d*"];
const WORDS: [&str; 12] = [
    "x",
    "",
    "17",
    "-3",
    "0",
    "2.5",
    "hello",
    "9223372036854775807",
    "+1",
    "007",
    "nan",
    "1e3",
];
const SCORES: [&str; 10] = [
    "1",
    "2",
    "2.5",
    "-7",
    "inf",
    "-inf",
    "1795000000000123",
    "0.1",
    "1e17",
    "x",
];
const BOUNDS: [&str; 6] = ["-inf", "+inf", "(2", "2", "1795000000000123", "y"];

/// Scripts that run the command that they are told, and look at what it answers; and some that show what becomes of numbers.
const SCRIPTS: [&str; 14] = [
    "return redis.call(unpack(ARGV))",
    "return redis.pcall(unpack(ARGV))",
    "return type(redis.call(unpack(ARGV)))",
    "local r = redis.pcall(unpack(ARGV)) return type(r) == 'table' and r.err and 'failed' or {r}",
    "local r = redis.call(unpack(ARGV)) return {type(r) == 'table' and #r or -1, tostring(type(r) == 'table' or r)}",
    "redis.call('SET', 'n', (tonumber(ARGV[3]) or 3) / 10) return redis.call('GET', 'n')",
    "redis.call('SET', 'n', (tonumber(ARGV[3]) or 3) * 1e15) return redis.call('GET', 'n')",
    "redis.call('ZADD', 'z', (tonumber(ARGV[3]) or 3) / 10, 'm') return redis.call('ZRANGE', 'z', 0, -1, 'WITHSCORES')",
    "return {1, 2.9, -2.9, 'x', false, true, {ok = 'fine'}, {1, {2}}, nil, 9}",
    "return {err = 'MINE it failed'}",
    "return {KEYS[1], #KEYS, #ARGV, ARGV[1]}",
    "return redis.call('GET', KEYS[1]) or 'nothing'",
    "return tonumber(redis.pcall('INCRBY', KEYS[1], 5)) or 'no number'",
    "return {redis.sha1hex(''), redis.sha1hex(KEYS[1] .. '\\255')}",
];

fn one<'a>(random: &mut Rng, of: &[&'a str]) -> &'a str {
    of[random.usize(..of.len())]
}

/// The next one.
pub(crate) fn command(random: &mut Rng) -> Vec<String> {
    if random.u8(..4) > 0 {
        return plain(random);
    }
    let (script, key) = (one(random, &SCRIPTS), one(random, &KEYS));
    let mut words = vec![
        "EVAL".to_owned(),
        script.to_owned(),
        "1".to_owned(),
        key.to_owned(),
    ];
    words.extend(plain(random));
    words
}

/// A command of the data. Those whose answer has no order have at most one field, or none.
fn plain(random: &mut Rng) -> Vec<String> {
    let (key, other) = (one(random, &KEYS), one(random, &KEYS));
    let (word, more) = (one(random, &WORDS), one(random, &WORDS));
    let (score, least, most) = (
        one(random, &SCORES),
        one(random, &BOUNDS),
        one(random, &BOUNDS),
    );
    let (from, to) = (random.i32(-4..4).to_string(), random.i32(-4..4).to_string());
    let ms = one(
        random,
        &[
            "1",
            "2",
            "100000",
            "1000000",
            "0",
            "-5",
            "x",
            "9223372036854775807",
        ],
    );
    let long = one(random, &["100000", "0", "y"]);
    let words: &[&str] = match random.u8(..43) {
        0 | 1 => &["GET", key],
        2 => &["SET", key, word],
        3 => &["SET", key, word, "PX", ms],
        4 => &["set", key, word, "NX", "px", "100000"],
        5 => &["SET", key, word, "XX", "EX", long],
        6 => &["SET", key, word, "KEEPTTL"],
        7 => &["SET", key, word, "PX"],
        8 => &["SETRANGE", key, &from, word],
        9 => &["INCRBY", key, word],
        10 => &["MGET", key, other],
        11 => &["DEL", key],
        12 => &["UNLINK", key, other],
        13 => &["EXISTS", key, other, key],
        14 => &["TYPE", key],
        15 | 16 => &["PEXPIRE", key, ms],
        17 | 18 => &["PTTL", key],
        19 => &["HSET", key, word, more],
        20 => &["HSET", key, word, more, more, word],
        21 => &["HSET", key, word],
        22 => &["HGET", key, word],
        23 => &["HMGET", key, word, more],
        24 => &["HDEL", key, word, more],
        25 => &["HLEN", key],
        26 | 27 => &["ZADD", key, score, word],
        28 => &["ZADD", key, score, word, "3", more],
        29 => &["ZREM", key, word, more],
        30 => &["ZCARD", key],
        31 => &["ZSCORE", key, word],
        32 => &["ZRANGE", key, &from, &to],
        33 => &["ZREVRANGE", key, &from, &to, "WITHSCORES"],
        34 => &["ZRANGEBYSCORE", key, least, most, "LIMIT", "0", "2"],
        35 => &["ZRANGEBYSCORE", key, least, most, "WITHSCORES"],
        36 => &["ZREMRANGEBYSCORE", key, least, most],
        37 => &["RPUSH", key, word],
        38 => &["PUBLISH", key, word],
        39 | 40 => &["RENAME", key, other],
        41 => &["EXPIRE", key, long],
        _ => &["GET", key, other],
    };
    words.iter().map(|word| (*word).to_owned()).collect()
}
