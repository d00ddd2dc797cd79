//! The question to a member at the start: whether it may end leases that are alive, and whether it
//! serves.

use crate::client::cluster::Cluster;

impl Cluster {
    /// Asks the member in use whether it may lose locks, or grant none, and writes the reasons as
    /// sentences for its operator, behind those that are known. One request.
    pub(crate) async fn check(&self, known: Vec<String>) {
        let status = self.ask(self.config.timeout, |client| async move {
            client.maintenance_client().status().await
        });
        let mut warnings = known;
        warnings.extend(match status.await.outcome {
            Ok(status) => judged(status.version(), status.errors()),
            Err(_) => vec![UNKNOWN.to_owned()],
        });
        let _ = self.warnings.set(warnings);
    }
}

const UNKNOWN: &str = "which version this etcd is, and whether it may revoke live leases (etcd#15247), is not known: it does not say";

/// The warnings that follow from a version, and from the alarms that the member reports.
fn judged(version: &str, errors: &[String]) -> Vec<String> {
    let mut warnings = Vec::new();
    if revokes_live_leases(version) {
        warnings.push(format!(
            "etcd {version} may revoke leases that are alive when a stopped leader wakes (etcd#15247): two clients may \
             hold at once, and only the fencing token tells them apart. Fixed in 3.4.30 and 3.5.12."
        ));
    }
    warnings.extend(errors.iter().map(|error| {
        format!("etcd reports {error:?}: claims may be refused until that is cleared")
    }));
    warnings
}

fn revokes_live_leases(version: &str) -> bool {
    let mut numbers = version
        .split(['.', '-', '+'])
        .map_while(|part| part.parse().ok());
    match [0; 3].map(|_: u32| numbers.next().unwrap_or_default()) {
        [3, 4, patch] => patch < 30,
        [3, 5, patch] => patch < 12,
        other => other < [3, 5, 0],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_with_the_fault_are_known() {
        for (version, warns) in [
            ("3.3.27", true),
            ("3.4.23", true),
            ("3.4.29", true),
            ("3.5.0-rc.1", true),
            ("3.5.11", true),
            ("3.4.30", false),
            ("3.5.12", false),
            ("3.6.0", false),
            ("3.6.0-rc.1", false),
            ("4.0", false),
        ] {
            let found = judged(version, &[]);
            assert_eq!(!found.is_empty(), warns, "{version}");
            assert!(
                found
                    .iter()
                    .all(|text| text.contains(version) && text.contains("15247")),
                "{found:?}"
            );
        }
        let full = judged("3.5.12", &["memberID:1 alarm:NOSPACE".to_owned()]);
        assert!(
            matches!(&full[..], [one] if one.contains("NOSPACE")),
            "{full:?}"
        );
    }
}
