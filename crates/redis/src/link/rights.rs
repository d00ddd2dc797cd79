//! The needs of a store's scripts: the rights of its user, and a server that has their commands.
//! These are checked beforehand: an old server names neither the command nor the key that it
//! refuses inside a script, and a script that stops midway leaves its writes behind.

use std::sync::LazyLock;

use leasehold_core::{Error, ErrorKind, Result};
use redis::{Value, from_redis_value};

use crate::link::connection::Connection;
use crate::link::error::{
    CHANNELS, LACKS, LISTED, is_denied, is_of_command, junk, no_command, phrase_in,
};
use crate::link::script::{Call, Script};

static RIGHTS: LazyLock<Script> = LazyLock::new(|| Script::new(&[include_str!("rights.lua")]));

/// The calls of a store's scripts.
#[derive(Debug)]
pub(crate) struct Needs {
    /// Each command, in a call without an effect: its arguments are wrong, or its key does not
    /// exist. `#` stands for a key of the store, whatever it holds, and `-` for one that never
    /// exists.
    pub(crate) calls: &'static [&'static str],
}

/// Refuses a server that can never run the scripts of a store, or whose user may not. `key` is a
/// key that each user of the store may use, and `absent` one that does not exist. Errors that may
/// pass are ignored here.
pub(crate) async fn check(
    connection: &Connection,
    needs: &Needs,
    key: &str,
    absent: &str,
) -> Result<()> {
    match missing(connection, needs, &[key.to_owned()], absent).await {
        Ok(Some(e)) => Err(e),
        Err(e) if matches!(e.kind(), ErrorKind::Denied | ErrorKind::Unsupported) => Err(e),
        _ => Ok(()),
    }
}

/// The error for the rights or the command that scripts with these keys lack.
pub(crate) async fn missing(
    connection: &Connection,
    needs: &Needs,
    keys: &[String],
    absent: &str,
) -> Result<Option<Error>> {
    let call = |declared: usize| {
        let of = keys.iter().map(String::as_str);
        let all: Vec<&str> = [absent].into_iter().chain(of.clone()).collect();
        let call = all[..declared]
            .iter()
            .fold(Call::of(&RIGHTS, declared), Call::arg);
        let call = call.arg(absent).arg(needs.calls.len());
        let call = needs.calls.iter().fold(call, Call::arg);
        of.fold(call, Call::arg)
    };
    // The keys are in many slots of a Cluster.
    let declared = if connection.is_in_cluster() {
        0
    } else {
        1 + keys.len()
    };
    let mut answer = call(declared).said(connection).await?;
    if is_denied(&answer) && declared > 0 {
        // A user without the right to one of the keys may not even begin the script.
        answer = call(0).said(connection).await?;
    }
    let answer = connection.refusal(answer)?;
    let refused: Vec<String> = from_redis_value(answer).map_err(|_| junk("an answer"))?;
    Ok(judged(&refused).map(|e| connection.at(&e)))
}

/// Returns whether the server, a proxy before it, or the rights of the user forbid all scripts.
pub(crate) async fn forbids_scripts(connection: &Connection) -> bool {
    let mut scripts = redis::pipe();
    scripts.cmd("EVALSHA").arg("0".repeat(40)).arg(0);
    scripts.cmd("EVAL").arg("return 1").arg(0);
    let answers = connection.send(&scripts).await.unwrap_or_default();
    answers.iter().any(|answer| match answer {
        Value::ServerError(e) => {
            let why = format!("{} {}", e.code(), e.details().unwrap_or_default());
            matches!(phrase_in(&why), Some("UNKNOWN" | "NOPERM")) && !why.contains("in script")
        }
        _ => false,
    })
}

/// The error that follows from these refusals. Each one is the command, or `~key`, and the server's
/// words.
pub(crate) fn judged(refused: &[String]) -> Option<Error> {
    let mut unknown = None;
    let mut lacks = Vec::new();
    for (what, why) in refused.iter().filter_map(|line| line.rsplit_once('\n')) {
        let right = match (phrase_in(why), what.starts_with('~')) {
            // In a Cluster a key may also be on another node.
            (Some("UNKNOWN"), false) => {
                unknown = unknown.or(Some(what));
                continue;
            }
            (Some("NOPERM"), _) if why.contains("channel") => CHANNELS.to_owned(),
            (Some("NOPERM"), is_key) if is_key != is_of_command(why) => {
                if is_key {
                    what.to_owned()
                } else {
                    format!("+{what}")
                }
            }
            _ => continue,
        };
        if !lacks.contains(&right) {
            lacks.push(right);
        }
    }
    if let Some(command) = unknown {
        return Some(no_command(Some(command)));
    }
    let what = || format!("{LACKS}: {}. {LISTED}", lacks.join(" "));
    (!lacks.is_empty()).then(|| Error::new(ErrorKind::Denied, what()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named_in_the_words_of_each_version() {
        let told = |lines: &[&str]| {
            let lines: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
            judged(&lines).map(|e| (e.kind(), e.to_string()))
        };
        let lacks = |words: &str| Some((ErrorKind::Denied, format!("{LACKS}: {words}. {LISTED}")));
        // The words of Redis 6 and 7.0, and those of later versions.
        let command = [
            "pexpire\nERR The user executing the script can't run this command or subcommand",
            "zadd\nERR ACL failure in script: User app has no permissions to run the 'zadd' command",
        ];
        assert_eq!(told(&command), lacks("+pexpire +zadd"));
        let key = [
            "~{x}:l\nERR The user executing the script can't access at least one of the keys mentioned in the command arguments",
            "~{x}:o\nERR ACL failure in script: No permissions to access a key",
            "~{x}:o\nERR ACL failure in script: No permissions to access a key",
            // A refusal of the call's key says nothing about its command, and the other way round.
            "get\nERR ACL failure in script: No permissions to access a key",
            "~x\nERR The user executing the script can't run this command or subcommand",
        ];
        assert_eq!(told(&key), lacks("~{x}:l ~{x}:o"));
        let channel = [
            "publish\nERR The user executing the script can't publish to the channel mentioned in the command",
            "publish\nERR ACL failure in script: No permissions to access a channel",
        ];
        assert_eq!(told(&channel), lacks("&leasehold:*"));
        let harmless = [
            "set\nERR syntax error",
            "pexpire\nERR value is not an integer or out of range",
            "~x\nWRONGTYPE Operation against a key holding the wrong kind of value",
            "get\nREADONLY You can't write against a read only replica.",
        ];
        assert_eq!(told(&harmless), None);
        for (line, words) in [
            ("hset\nERR Unknown Redis command called from script", "HSET"),
            ("hset\nERR Unknown command called from script", "HSET"),
        ] {
            let (kind, text) = told(&[line]).unwrap();
            assert!(
                kind == ErrorKind::Unsupported && text.contains(words),
                "{text}"
            );
        }
    }
}
