//! Compares the servers of one URL, each of which is connected to alone: a server of another store grants the locks that are held
//! in this one. At connect the stores compare the servers that answer at once, and ZooKeeper compares none. The hosts of a Redis Cluster are
//! connected to alone, too: each of them has to lead to the one Cluster.

use std::time::Duration;

use futures_util::future::join_all;
use leasehold::{Error, ErrorKind, StoreId};
use leasehold_net::Host;

use crate::verify::findings::{Finding, note, warning};

/// The time in which a server has to answer. The whole comparison takes no longer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A finding for each of these servers that does not belong to the store of this identity, or does not say so.
pub(crate) async fn compare(url: &str, hosts: &[Host], known: &StoreId) -> Vec<Finding> {
    if hosts.len() < 2 {
        return Vec::new();
    }
    let each = hosts.iter().map(|host| async {
        // A client whose URL names the store writes no identity where it finds none.
        let url = pinned(&alone(url, host), known);
        let answer = tokio::time::timeout(TIMEOUT, identity(&url))
            .await
            .unwrap_or_else(|_| Err(Error::new(ErrorKind::Unavailable, "it does not answer")));
        judge(host, answer, known)
    });
    join_all(each).await.into_iter().flatten().collect()
}

/// The identity that a client of one server sees.
async fn identity(url: &str) -> Result<Option<StoreId>, Error> {
    let client = leasehold::connect(url).backend().await?;
    let id = client.identity();
    let _ = client.close().await;
    Ok(id)
}

fn judge(host: &Host, answer: Result<Option<StoreId>, Error>, known: &StoreId) -> Option<Finding> {
    let other = match answer {
        Ok(Some(id)) if id == *known => return None,
        Ok(Some(id)) => format!("belongs to the store {id}"),
        Err(e) if e.kind() == ErrorKind::OtherStore => format!("belongs to another store ({e})"),
        Ok(None) => return Some(unknown(host, &"it has no identity")),
        Err(e) => return Some(unknown(host, &e)),
    };
    let text = format!(
        "{host} {other}, and the others of the URL to {known}: its locks are others, and a new client may use either \
         (\"Exclusion\"). Name the servers of one store, and pin it in the URL by `store={known}`."
    );
    Some(warning("identity", text))
}

fn unknown(host: &Host, why: &dyn std::fmt::Display) -> Finding {
    let text = format!("Whether {host} belongs to the same store is not known: {why}.");
    note("identity", text)
}

/// The URL with this server alone.
fn alone(url: &str, host: &Host) -> String {
    let begin = url.find("://").map_or(0, |at| at + "://".len());
    let end = url[begin..]
        .find(['/', '?'])
        .map_or(url.len(), |at| begin + at);
    let hosts = url[begin..end]
        .rfind('@')
        .map_or(begin, |at| begin + at + 1);
    format!("{}{host}{}", &url[..hosts], &url[end..])
}

/// The URL with this identity of its store.
fn pinned(url: &str, known: &StoreId) -> String {
    let (_, words) = url.split_once('?').unwrap_or((url, ""));
    if words.split('&').any(|word| word.starts_with("store=")) {
        return url.to_owned();
    }
    let begins = if url.contains('?') { '&' } else { '?' };
    format!("{url}{begins}store={known}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verify::findings::Severity;

    #[test]
    fn a_url_is_reduced_to_one_of_its_servers() {
        let host = Host::parse("b:2", 1).unwrap();
        for (url, wanted) in [
            ("etcd://a:1,b:2", "etcd://b:2"),
            (
                "etcd://u:p%40@a:1,b:2?timeout=5",
                "etcd://u:p%40@b:2?timeout=5",
            ),
            ("zookeeper://a,b:2/root/@x", "zookeeper://b:2/root/@x"),
        ] {
            assert_eq!(alone(url, &host), wanted);
        }
    }

    #[test]
    fn another_store_is_a_warning_and_silence_is_a_note() {
        let host = Host::parse("b:2", 1).unwrap();
        let [one, two] = ["1", "2"].map(|id| StoreId::of("etcd", id));
        let judged = |answer| judge(&host, answer, &one).map(|finding| finding.severity);
        assert_eq!(judged(Ok(Some(one.clone()))), None);
        assert_eq!(judged(Ok(Some(two))), Some(Severity::Warning));
        for (kind, severity) in [
            (ErrorKind::OtherStore, Severity::Warning),
            (ErrorKind::Unavailable, Severity::Note),
        ] {
            assert_eq!(judged(Err(Error::new(kind, "why"))), Some(severity));
        }
    }
}
