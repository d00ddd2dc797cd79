//! Requests over RESP2, to a server or a proxy that may know few commands: `GET`, `SET`, `EVAL` and
//! `EVALSHA` with a key, and the `AUTH` and `SELECT` of a URL. Some proxies close the connection at
//! any other command, so a script asks what another command would.

use redis::Cmd;

/// Answers of `INFO`, one for each section.
const INFO: &str = "\
local told = {}
for i, section in ipairs(ARGV) do
  local said = redis.pcall('INFO', section)
  told[i] = type(said) == 'string' and said or ''
end
return told";
const SCAN: &str = "return redis.call('SCAN', unpack(ARGV))";
const GET: &str = "return redis.call('GET', KEYS[2])";

/// The number of keys by which the servers behind a proxy are looked for: with two servers of the
/// same weight, all of them are at one by a chance of 1 in 2⁶⁴.
const PROBES: usize = 64;

/// Asks for the answers of `INFO` about these sections. `key` is any key of the store.
pub(super) fn info(key: &str, sections: &[&str]) -> Cmd {
    eval(INFO, &[key], sections)
}

/// Asks for one step of a walk over all keys.
pub(super) fn scan(key: &str, words: &[&str]) -> Cmd {
    eval(SCAN, &[key], words)
}

/// Reads a key at the server of other keys, which never exist. A proxy that spreads keys over several
/// servers sends a script to that of its first key.
pub(super) fn probes(key: &str) -> redis::Pipeline {
    let prefix = key.trim_start_matches('{').split('}').next().unwrap_or("");
    let mut probes = redis::Pipeline::with_capacity(PROBES);
    for n in 0..PROBES {
        probes.add_command(eval(GET, &[&format!("{{{prefix}{n}}}:-"), key], &[]));
    }
    probes
}

fn eval(script: &str, keys: &[&str], args: &[&str]) -> Cmd {
    let mut eval = redis::cmd("EVAL");
    eval.arg(script).arg(keys.len()).arg(keys).arg(args);
    eval
}
