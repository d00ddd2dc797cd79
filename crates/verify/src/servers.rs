//! What each kind of server says of itself, asked beside the store's own client.

use leasehold::Guarantees;
use leasehold::support::{Address, Host};

use crate::findings::{self, Finding, note, warning};
use crate::sessions;
use crate::tcp::ask;

/// What was found out.
#[derive(Debug, Default)]
pub(crate) struct Server {
    pub(crate) version: Option<String>,
    pub(crate) findings: Vec<Finding>,
}

/// Asks the servers of this URL, and adds what the store has found out itself. What cannot be found out is a note.
pub(crate) async fn inspect(url: &str, guarantees: &Guarantees) -> Server {
    let mut server = Server::default();
    match url.split_once("://").map_or("", |(scheme, _)| scheme) {
        "etcd" => drop(server.ask_each(url, "etcd", 2379, etcd).await),
        "zookeeper" => {
            let hosts = server.ask_each(url, "zookeeper", 2181, zookeeper).await;
            server.findings.extend(session_limits(&hosts).await);
        }
        #[cfg(feature = "redis")]
        scheme @ ("redis" | "redlock") => drop(server.ask_each(url, scheme, 6379, crate::redis::inspect).await),
        #[cfg(feature = "redis")]
        scheme @ ("redis+sentinel" | "redis+cluster") => {
            let (members, findings) = crate::members::of(url, scheme).await;
            server.findings.extend(findings);
            if let Some(members) = members {
                server.ask_all(&members, crate::members::inspect).await;
            }
        }
        // Beside the store's client only plain text is spoken here.
        "rediss" | "rediss+sentinel" | "rediss+cluster" | "redlocks" | "etcds" | "zookeepers" => {
            let text = "The servers are not asked for their versions and settings over TLS: nothing is known of them.";
            server.findings.push(note("version", text));
        }
        _ => {}
    }
    // What a server was asked for here is not said again by the store.
    let is_new = |text: &&String| server.findings.iter().all(|finding| finding.text != **text);
    let told: Vec<Finding> = guarantees.warnings.iter().filter(is_new).map(|text| warning("settings", text)).collect();
    server.findings.splice(0..0, told);
    server
}

impl Server {
    /// Asks each server of a URL, and returns them.
    async fn ask_each(
        &mut self,
        url: &str,
        scheme: &str,
        port: u16,
        one: impl AsyncFn(&Address, &Host) -> Option<(String, Vec<Finding>)>,
    ) -> Vec<Host> {
        let Ok(address) = Address::parse(url, scheme, port) else { return Vec::new() };
        self.ask_all(&address, one).await;
        address.hosts
    }

    async fn ask_all(
        &mut self,
        address: &Address,
        one: impl AsyncFn(&Address, &Host) -> Option<(String, Vec<Finding>)>,
    ) {
        let mut answers = Vec::new();
        for host in &address.hosts {
            match one(address, host).await {
                Some((version, findings)) => answers.push((host.to_string(), version, findings)),
                None => {
                    let text = format!("{host} did not say which version it is: nothing is known of its settings.");
                    self.findings.push(note("version", text));
                }
            }
        }
        self.add(&answers);
    }

    /// What all of them say is said once; what differs is said of each.
    fn add(&mut self, answers: &[(String, String, Vec<Finding>)]) {
        let mut versions: Vec<&str> = answers.iter().map(|(_, version, _)| version.as_str()).collect();
        versions.sort_unstable();
        versions.dedup();
        self.version = (!versions.is_empty()).then(|| versions.join(", "));
        if versions.len() > 1 {
            let each: Vec<String> = answers.iter().map(|(host, version, _)| format!("{host} {version}")).collect();
            let text = format!(
                "The servers are of different versions: {}. What a version is warned of weakens the promises of all.",
                each.join(", ")
            );
            self.findings.push(note("version", text));
        }
        for (host, _, findings) in answers {
            for finding in findings {
                let of_all = answers.iter().all(|(.., others)| others.contains(finding));
                let named = of_all || finding.text.contains(host);
                let text = if named { finding.text.clone() } else { format!("{host}: {}", finding.text) };
                let finding = Finding { text, ..finding.clone() };
                if !self.findings.contains(&finding) {
                    self.findings.push(finding);
                }
            }
        }
    }
}

async fn etcd(_: &Address, host: &Host) -> Option<(String, Vec<Finding>)> {
    let question = format!("GET /version HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", host.name);
    let answer = ask(host, &question).await?;
    let json = &answer[answer.find('{')?..=answer.rfind('}')?];
    let version = serde_json::from_str::<serde_json::Value>(json).ok()?.get("etcdserver")?.as_str()?.to_owned();
    let findings = findings::of_etcd(&version);
    Some((version, findings))
}

async fn zookeeper(_: &Address, host: &Host) -> Option<(String, Vec<Finding>)> {
    let answer = ask(host, "srvr").await?;
    Some((findings::zookeeper_version(&answer)?, findings::of_zookeeper(&answer)))
}

/// Whether the members of an ensemble allow the same sessions.
async fn session_limits(hosts: &[Host]) -> Vec<Finding> {
    let (mut members, mut findings) = (Vec::new(), Vec::new());
    for host in hosts {
        match sessions::limits(host).await {
            Some(limits) => members.push((host.to_string(), limits)),
            None if hosts.len() > 1 => {
                let text =
                    format!("{host} took no session: whether it allows the same timeouts as the others is not known.");
                findings.push(note("session limits", text));
            }
            None => {}
        }
    }
    findings.extend(sessions::differing(&members));
    findings
}

#[cfg(test)]
mod tests {
    use leasehold_testbed::ZooKeeper;

    use super::*;

    #[test]
    fn what_differs_is_said_of_each_member() {
        let [both, one] = ["keeps no file", "evicts keys"].map(|text| warning("data", text));
        let answer = |host: &str, version: &str, findings: &[&Finding]| {
            (host.to_owned(), version.to_owned(), findings.iter().copied().cloned().collect())
        };
        let mut server = Server::default();
        server.add(&[answer("a:1", "7.0", &[&both]), answer("b:2", "6.2", &[&both, &one])]);
        assert_eq!(server.version.as_deref(), Some("6.2, 7.0"));
        let texts: Vec<&str> = server.findings.iter().map(|finding| finding.text.as_str()).collect();
        assert!(texts[0].contains("a:1 7.0, b:2 6.2"), "{texts:?}");
        assert_eq!(texts[1..], ["keeps no file", "b:2: evicts keys"]);
        let mut alike = Server::default();
        alike.add(&[answer("a:1", "7.0", &[&one]), answer("b:2", "7.0", &[&one])]);
        assert_eq!(alike.findings.len(), 1, "{:?}", alike.findings);
    }

    async fn differing(url: &str) -> Vec<Finding> {
        let found = inspect(url, &Guarantees::none("zookeeper")).await.findings;
        found.into_iter().filter(|finding| finding.about == "session limits").collect()
    }

    /// Each member has limits of its own, and a client comes to any of them.
    #[tokio::test]
    async fn members_of_an_ensemble_that_allow_different_sessions_are_found_out() {
        let ensemble = ZooKeeper::ensemble(3).await.unwrap();
        let url = format!("zookeeper://{}", ensemble.connect_string());
        assert_eq!(differing(&url).await, []);
        let strict = &ensemble.members()[1];
        strict.kill().await.unwrap();
        let silent = differing(&url).await;
        assert!(matches!(&silent[..], [one] if one.text.contains(strict.addr())), "{silent:?}");
        let config = strict.data().parent().unwrap().join("zoo.cfg");
        let text = std::fs::read_to_string(&config).unwrap();
        std::fs::write(config, format!("{text}\nmaxSessionTimeout=20000\n")).unwrap();
        strict.start_again().await.unwrap();
        let [found] = &differing(&url).await[..] else { panic!("no finding, or several") };
        let limits = |host: &str, longest: u32| format!("{host} 400 to {longest} ms");
        for (member, longest) in ensemble.members().iter().zip([60_000, 20_000, 60_000]) {
            assert!(found.text.contains(&limits(member.addr(), longest)), "{}", found.text);
        }
        assert_eq!(found.severity, findings::Severity::Warning);
        // The sessions that asked are closed, and do not wait for their ends.
        let leader = &ensemble.members()[ensemble.leader().await];
        let dump = leader.four_letter_word("dump").await.unwrap();
        assert!(dump.contains("Global Sessions(0)") || dump.contains("Sessions with Ephemerals (0)"), "{dump}");
        assert!(!dump.contains("20000ms") && !dump.contains("60000ms"), "{dump}");
    }
}
