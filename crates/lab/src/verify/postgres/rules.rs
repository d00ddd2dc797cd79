//! Rules over the settings that a PostgreSQL server reports, for findings that the store itself does not warn of.

use crate::verify::findings::{Finding, note, warning};

/// The answers of one server, as the role of the URL sees them.
#[derive(Clone, Default, Debug)]
pub(crate) struct Facts {
    /// It follows another.
    pub(crate) is_standby: bool,
    /// The certain lead of the server's clock over ours, in seconds; negative if it is behind.
    pub(crate) ahead: f64,
    /// `idle_in_transaction_session_timeout`, in milliseconds; 0: none.
    pub(crate) idle_in_transaction: i64,
    /// `statement_timeout`, the same.
    pub(crate) statement: i64,
    /// `synchronous_standby_names`.
    pub(crate) synchronous: String,
    /// The number of connected standbys.
    pub(crate) standbys: i64,
    /// The number of connections that this role may still open.
    pub(crate) room: i64,
    /// The greatest number that a client opens.
    pub(crate) needs: i64,
    /// For how long the oldest transaction that this role sees has been open, in seconds.
    pub(crate) longest: f64,
    /// The number of transactions that were prepared more than a minute ago and wait for their second phase.
    pub(crate) prepared: i64,
    /// The age, in transactions, of the oldest snapshot that a replication slot keeps.
    pub(crate) slot: i64,
    /// The connection to it is older than ours, or its port another: somebody stands between.
    pub(crate) is_behind: bool,
}

/// Clocks of one network agree better.
const CLOCKS: f64 = 1.0;
/// A transaction that stopped may keep a lock for so long, in milliseconds.
const STOPPED: i64 = 60_000;
/// A request has a second.
const REQUEST: i64 = 1_000;
/// The number of clients below which the room for connections is no finding.
const FEW: i64 = 10;
/// In seconds.
const LONG: f64 = 600.0;
/// In transactions, as the store warns of the sessions'.
const OLD: i64 = 1_000_000;

/// A server that said this.
pub(crate) fn of_postgres(host: &str, facts: &Facts) -> Vec<Finding> {
    let mut findings = clock(host, facts.ahead);
    if facts.is_standby {
        findings.push(note(
            "role",
            format!("{host} is a standby: it takes no locks before it is promoted."),
        ));
        return findings;
    }
    findings.extend(connections(facts).into_iter().chain(transactions(facts)));
    if !facts.synchronous.is_empty() && facts.standbys == 0 {
        findings.push(note(
            "standbys",
            "synchronous_standby_names is set, and no standby is connected: no claim is answered before one is, so \"No stuck waiter\" \
             holds from then on.",
        ));
    }
    if facts.statement > 0 && facts.statement < REQUEST {
        let text = format!(
            "statement_timeout ends requests after {} ms, which have a second: on a busy server renewals fail, and \"Loss is early\" \
             comes while nothing else does. ALTER ROLE … SET statement_timeout = 0.",
            facts.statement
        );
        findings.push(warning("settings", text));
    }
    if facts.is_behind {
        findings.push(note(
            "pooler",
            "A pooler or a forwarder stands between: in transaction mode it lets no notification through. listen= names a way around it; \
             its own limits of connections and of time count, too.",
        ));
    }
    findings
}

fn clock(host: &str, ahead: f64) -> Vec<Finding> {
    if ahead.abs() <= CLOCKS {
        return Vec::new();
    }
    let what = if ahead > 0.0 { "ahead of" } else { "behind" };
    let text = format!(
        "The clock of {host} is {:.1} s {what} this machine's. Leases end by the server's, and a step of it ends them (\"Exclusion\"); a \
         server that takes another's place behind its clock gives lower tokens if data are lost (\"Fencing\"). Synchronize them, without \
         steps.",
        ahead.abs()
    );
    vec![warning("clock", text)]
}

fn connections(&Facts { room, needs, .. }: &Facts) -> Option<Finding> {
    if room < needs {
        let text = format!(
            "There is room for {room} more connections, and a client opens up to {needs}: it works with fewer, and its requests then wait \
             for each other. Raise max_connections, or put a pooler between."
        );
        return Some(warning("connections", text));
    }
    let clients = room / needs.max(1);
    (clients < FEW).then(|| {
        let text =
            format!("There is room for {room} more connections: for {clients} clients if each opens its {needs}.");
        note("connections", text)
    })
}

/// Those of others.
fn transactions(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    if facts.idle_in_transaction > STOPPED {
        let text = format!(
            "idle_in_transaction_session_timeout is {} s: a transaction under held() that stops keeps its lock for so long, and not for \
             one lease (\"No stuck waiter\"). Where it is 0, held() sets it to the lease.",
            facts.idle_in_transaction / 1000
        );
        findings.push(note("transactions", text));
    }
    if facts.prepared > 0 {
        let text = format!(
            "{} prepared transactions wait for their second phase: one that called held() keeps its lock until it is resolved (\"No \
             stuck waiter\"), and each keeps what was deleted from being cleaned up (\"Constant cost\").",
            facts.prepared
        );
        findings.push(note("transactions", text));
    }
    if facts.longest > LONG {
        let text = format!(
            "A transaction has been open for {:.0} minutes: until it ends nothing is cleaned up, and busy locks get slower (\"Constant \
             cost\").",
            facts.longest / 60.0
        );
        findings.push(note("transactions", text));
    }
    if facts.slot > OLD {
        findings.push(note(
            "transactions",
            "A replication slot has kept a snapshot for more than a million transactions: until it goes on nothing is cleaned up, and \
             busy locks get slower (\"Constant cost\").",
        ));
    }
    findings
}

/// Several of one URL that take writes, and are not the same server, which each says by when it started.
pub(crate) fn primaries(started: &[(String, String)]) -> Option<Finding> {
    let (_, first) = started.first()?;
    if started.iter().all(|(_, at)| at == first) {
        return None;
    }
    let hosts: Vec<&str> = started.iter().map(|(host, _)| &**host).collect();
    let text = format!(
        "{} take writes, and are not the same server: a client uses the first that answers it, so two may hold at once (\"Exclusion\"). \
         Name the servers of one cluster, in which one is primary.",
        hosts.join(" and ")
    );
    Some(warning("role", text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verify::findings::Severity::{self, Note, Warning};

    fn good() -> Facts {
        Facts {
            room: 90,
            needs: 7,
            ..Facts::default()
        }
    }

    fn abouts(change: impl Fn(&mut Facts)) -> Vec<(Severity, &'static str)> {
        let mut facts = good();
        change(&mut facts);
        of_postgres("h:1", &facts)
            .iter()
            .map(|finding| (finding.severity, finding.about))
            .collect()
    }

    #[test]
    fn each_setting_that_matters_is_told_and_no_other() {
        assert_eq!(abouts(|_| {}), []);
        assert_eq!(abouts(|facts| facts.room = 7), [(Note, "connections")]);
        assert_eq!(abouts(|facts| facts.room = 6), [(Warning, "connections")]);
        assert_eq!(abouts(|facts| (facts.room, facts.needs) = (70, 7)), []);
        assert_eq!(abouts(|facts| facts.ahead = -1.0), []);
        for ahead in [-1.1, 1.1, 3_600.0] {
            assert_eq!(
                abouts(|facts| facts.ahead = ahead),
                [(Warning, "clock")],
                "{ahead}"
            );
        }
        assert_eq!(abouts(|facts| facts.idle_in_transaction = 60_000), []);
        assert_eq!(
            abouts(|facts| facts.idle_in_transaction = 60_001),
            [(Note, "transactions")]
        );
        for free in [0, 1_000] {
            assert_eq!(abouts(|facts| facts.statement = free), [], "{free}");
        }
        assert_eq!(
            abouts(|facts| facts.statement = 999),
            [(Warning, "settings")]
        );
        assert_eq!(
            abouts(|facts| (facts.synchronous, facts.standbys) = ("b".into(), 1)),
            []
        );
        assert_eq!(
            abouts(|facts| facts.synchronous = "b".into()),
            [(Note, "standbys")]
        );
        assert_eq!(abouts(|facts| facts.is_behind = true), [(Note, "pooler")]);
        assert_eq!(
            abouts(|facts| facts.longest = 601.0),
            [(Note, "transactions")]
        );
        assert_eq!(abouts(|facts| facts.prepared = 1), [(Note, "transactions")]);
        assert_eq!(
            abouts(|facts| facts.slot = OLD + 1),
            [(Note, "transactions")]
        );
    }

    #[test]
    fn a_standby_is_judged_by_its_clock_alone() {
        let standby =
            |facts: &mut Facts| (facts.is_standby, facts.room, facts.statement) = (true, 0, 1);
        assert_eq!(abouts(standby), [(Note, "role")]);
        let late = |facts: &mut Facts| (facts.is_standby, facts.ahead) = (true, -30.0);
        assert_eq!(abouts(late), [(Warning, "clock"), (Note, "role")]);
    }

    #[test]
    fn servers_of_one_url_are_one_or_all_of_them_are_named() {
        let at = |host: &str, started: &str| (host.to_owned(), started.to_owned());
        assert_eq!(primaries(&[]), None);
        assert_eq!(
            primaries(&[at("a:1", "x"), at("b:1", "x")]),
            None,
            "two ways to one server"
        );
        let found = primaries(&[at("a:1", "x"), at("b:1", "y")]).unwrap();
        assert!(
            found.severity == Warning && found.text.starts_with("a:1 and b:1 take writes"),
            "{found:?}"
        );
    }
}
