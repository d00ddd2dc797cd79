//! The verbs of completions: the records that work is done once.

use std::iter::zip;
use std::time::{Duration, SystemTime};

use crate::link::{Connection, Fields, Keys, junk, record};
use leasehold_core::backend::{Claim, Complete, Completed, Moment};
use leasehold_core::{Completion, Error, ErrorKind, FencingToken, Keep, Name, Result};
use redis::Value;

use crate::scripts::{COMPLETE, FORGET, GO_ON_TELLING, LONGEST, READ_COMPLETION};
use crate::{COMPLETION, Redis};

/// The longest keep that is written: the server counts with whole numbers of milliseconds, and this
/// one is of 285 years.
const LONGEST_KEEP: u128 = 9_000_000_000_000;

impl Redis {
    pub(crate) async fn complete(&self, claim: &Claim, request: &Complete) -> Result<Completed> {
        let mut nth = 0;
        let replicas = self.replicas_now()?;
        let keep = millis(request.keep);
        let (flag, result) = match (&request.result, request.is_cut) {
            (None, _) => ('-', ""),
            (Some(result), false) => ('=', &**result),
            (Some(result), true) => ('~', &**result),
        };
        let call = |to: &Connection| {
            nth = to.nth()?;
            let call = self.on_once(&COMPLETE, &claim.name).over(nth);
            Ok(call
                .arg(claim.id)
                .arg(request.token)
                .arg(claim.once.unwrap_or_default())
                .arg(keep)
                .arg(flag)
                .arg(&claim.label)
                .arg(result))
        };
        let answer = self
            .nodes
            .run(|| self.names.lock(&claim.name), call)
            .await?;
        let (said, more) = match &answer {
            Value::Array(parts) => match &parts[..] {
                [said, Value::Int(more)] => (record(said)?, Some(*more)),
                _ => return Err(junk("the answer to a completion")),
            },
            said => (record(said)?, None),
        };
        let mut fields = Fields::of(&said);
        match fields.word() {
            "done" => {
                let done = read(fields)?;
                if let Some(behind) = more {
                    self.go_on_telling(&claim.name, behind).await;
                }
                self.acknowledged(nth, replicas).await?;
                Ok(Completed::Done(done))
            }
            "lost" => Ok(Completed::NotHeld),
            "unreadable" => Err(self.unreadable(&claim.name)),
            _ => Err(junk("the answer to a completion")),
        }
    }

    /// Goes on telling the waiters behind this ticket. Whoever was told, or renews a place, would do
    /// it, too.
    async fn go_on_telling(&self, name: &Name, mut behind: i64) {
        let begun = Moment::now();
        while Moment::now().since(begun) <= LONGEST {
            let call = |_: &Connection| Ok(self.on_once(&GO_ON_TELLING, name).arg(behind));
            match self.nodes.run(|| self.names.lock(name), call).await {
                Ok(Value::Int(next)) => behind = next,
                _ => return,
            }
        }
    }

    pub(crate) async fn completion(&self, name: &Name) -> Result<Option<Completion>> {
        let mut nth = 0;
        let replicas = self.replicas_now()?;
        let call = |to: &Connection| {
            nth = to.nth()?;
            Ok(self.on_once(&READ_COMPLETION, name).over(nth))
        };
        let answer = self.nodes.run(|| self.names.lock(name), call).await?;
        let done = self.shown(name, &answer)?;
        if done.is_some() {
            self.acknowledged(nth, replicas).await?;
        }
        Ok(done)
    }

    pub(crate) async fn forget(&self, name: &Name, token: FencingToken) -> Result<bool> {
        let mut nth = 0;
        let replicas = self.replicas_now()?;
        let call = |to: &Connection| {
            nth = to.nth()?;
            Ok(self.on_once(&FORGET, name).arg(token).over(nth))
        };
        match self.nodes.run(|| self.names.lock(name), call).await? {
            Value::Int(forgotten) => {
                self.acknowledged(nth, replicas).await?;
                Ok(forgotten == 1)
            }
            _ => Err(self.unreadable(name)),
        }
    }

    pub(crate) async fn list_completions(
        &self,
        prefix: &str,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<(Name, Completion)>> {
        let mut found = Vec::new();
        let mut after = after.cloned();
        // Some of them may end meanwhile: the next ones take their places.
        while found.len() < limit {
            let wanted = limit - found.len();
            let keys = Keys::Beside(COMPLETION);
            let names = self
                .nodes
                .list(&self.names, keys, prefix, after.as_ref(), wanted)
                .await?;
            let call = |name| (self.on_once(&READ_COMPLETION, name), self.names.lock(name));
            let answers = self.nodes.run_all(names.iter().map(call).collect()).await;
            for (name, answer) in zip(&names, answers) {
                let done = self.shown(name, &answer?)?;
                found.extend(done.map(|done| (name.clone(), done)));
            }
            if names.len() < wanted {
                break;
            }
            after = names.last().cloned();
        }
        Ok(found)
    }

    /// The completion in the answer to its reading, if there is one.
    fn shown(&self, name: &Name, answer: &Value) -> Result<Option<Completion>> {
        if *answer == Value::Nil {
            return Ok(None);
        }
        let said = record(answer)?;
        let mut fields = Fields::of(&said);
        match fields.word() {
            "done" => read(fields).map(Some),
            _ => Err(self.unreadable(name)),
        }
    }

    /// The error for a completion that a newer version has written, or that is none.
    pub(crate) fn unreadable(&self, name: &Name) -> Error {
        let key = self.names.beside(name, COMPLETION);
        let what = format!(
            "this version cannot read the record that the work is done: a newer one has written the key {key}, or another tool \
             (use the newer version; or remove the key, and the work is done again)"
        );
        Error::new(ErrorKind::Internal, what)
    }
}

/// The milliseconds of a keep as the server counts them, or -1 if it has no end.
fn millis(keep: Keep) -> i64 {
    match keep {
        Keep::For(keep) => keep.as_nanos().div_ceil(1_000_000).clamp(1, LONGEST_KEEP) as i64,
        Keep::Forever => -1,
    }
}

/// Reads `token fire left at flag n label result`.
pub(crate) fn read(mut fields: Fields<'_>) -> Result<Completion> {
    let unknown = || junk("a completion");
    let token = fields.token()?;
    let fire = fields.value()?;
    let left: i64 = fields.value()?;
    let at = SystemTime::UNIX_EPOCH.checked_add(fields.millis()?);
    let flag = fields.word();
    let length: usize = fields.value()?;
    let (label, result) = fields.text().split_at_checked(length).ok_or_else(unknown)?;
    let result = result.strip_prefix(' ').ok_or_else(unknown)?;
    let mut done = Completion::new(token, label, at.ok_or_else(unknown)?);
    done.fire = fire;
    // A key that has just ended is still shown.
    done.left = (left != -1).then(|| Duration::from_millis(u64::try_from(left).unwrap_or(0)));
    done.result = match flag {
        "-" => None,
        "=" | "~" => Some(result.into()),
        _ => return Err(unknown()),
    };
    done.is_cut = flag == "~";
    Ok(done)
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use leasehold_fuzz::fuzz_text;

    use super::*;

    #[test]
    fn a_keep_is_never_shorter_than_was_asked_for() {
        let ms = Duration::from_millis;
        for (keep, written) in [
            (Keep::For(Duration::ZERO), 1),
            (Keep::For(ms(250)), 250),
            (Keep::For(ms(250) + Duration::from_nanos(1)), 251),
            (
                Keep::For(Duration::from_secs(100 * 366 * 86_400)),
                3_162_240_000_000,
            ),
            (Keep::For(Duration::MAX), 9_000_000_000_000),
            (Keep::Forever, -1),
        ] {
            assert_eq!(millis(keep), written, "{keep:?}");
        }
    }

    #[test]
    fn label_and_result_are_told_apart_by_the_length() {
        let it = read(Fields::of(
            "17 3 1500 1700000000000 = 5 a  b  c\n \u{1F512}",
        ))
        .unwrap();
        assert_eq!(
            (&*it.label, it.result.as_deref()),
            ("a  b ", Some("c\n \u{1F512}"))
        );
        assert_eq!((it.token.get(), it.fire), (17, 3));
        assert_eq!(it.left, Some(Duration::from_millis(1500)));
        let none = read(Fields::of("17 18446744073709551615 -1 0 - 0  ")).unwrap();
        assert_eq!((none.fire, none.left, none.result), (u64::MAX, None, None));
        assert!(read(Fields::of("17 3 -2 0 ~ 0  x")).unwrap().is_cut);
        for junk in [
            "",
            "17 3 1 0 = 9 a b",
            "17 3 1 0 = 1 \u{1F512} b",
            "17 3 1 0 ? 1 a b",
            "17 3 1 0 = 1 ab",
        ] {
            assert!(read(Fields::of(junk)).is_err(), "{junk}");
        }
    }

    #[test]
    fn whatever_a_completion_says_it_is_read_or_refused() {
        fuzz_text(include_str!("../corpus/completions"), |text| {
            let Ok(it) = read(Fields::of(text)) else {
                return;
            };
            let at = it.at.duration_since(UNIX_EPOCH).unwrap().as_millis();
            let left = it.left.map_or(-1, |left| left.as_millis() as i64);
            let flag = match (&it.result, it.is_cut) {
                (None, _) => '-',
                (_, false) => '=',
                (_, true) => '~',
            };
            let n = it.label.len();
            let label = &it.label;
            let result = it.result.as_deref().unwrap_or_default();
            let written = format!(
                "{} {} {left} {at} {flag} {n} {label} {result}",
                it.token, it.fire
            );
            assert_eq!(read(Fields::of(&written)).unwrap(), it);
        });
    }
}
