//! What a run has proved, by primitive: one line of the table in `docs/guarantees.md`.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use crate::case::CASES;
use crate::harness::Powers;

/// The columns, and the groups of cases behind each.
const PRIMITIVES: [(&str, &[&str]); 6] = [
    (
        "`lock`",
        &["exclusion", "token", "waiting", "holding", "loss", "cancel", "names", "input", "fence", "cost", "hygiene"],
    ),
    ("`rw_lock`", &["shared", "downgrade", "modes", "programs"]),
    ("`semaphore`", &["permits", "modes", "programs"]),
    ("`election`", &["election", "modes", "programs"]),
    ("`multi`", &["multi", "modes", "programs"]),
    ("`owner`", &["reentry", "programs"]),
];

/// Which cases passed, and which did not.
#[derive(Default)]
pub(crate) struct Matrix(Mutex<BTreeMap<&'static str, bool>>);

impl Matrix {
    /// A case ran once more, in some dressing.
    pub(crate) fn note(&self, case: &'static str, passed: bool) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *all.entry(case).or_insert(true) &= passed;
    }

    /// The table's head, and this store's row.
    pub(crate) fn rows(&self, store: &str, powers: &Powers) -> [String; 2] {
        let head = PRIMITIVES.map(|(primitive, _)| primitive).join(" | ");
        let row = PRIMITIVES.map(|(_, groups)| self.cell(groups, powers)).join(" | ");
        [format!("| | {head} |"), format!("| {store} | {row} |")]
    }

    /// `✓`: whatever this store is expected to do was seen. What it lacks, it says why; what it has got wrong shows as `✗`.
    fn cell(&self, groups: &[&str], powers: &Powers) -> String {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut passed, mut failed, mut missing) = (0, 0, Vec::new());
        for case in CASES.iter().filter(|case| groups.iter().any(|group| case.name.starts_with(&format!("{group}/")))) {
            match all.get(case.name) {
                Some(true) => passed += 1,
                Some(false) => failed += 1,
                None => missing.extend(case.needs.iter().filter_map(|need| powers.shortcoming(*need))),
            }
        }
        missing.sort();
        missing.dedup();
        let missing = missing.join("; ");
        match (passed, failed) {
            (_, 1..) => format!("✗ {failed} failed"),
            (0, 0) => format!("– {missing}"),
            _ if missing.is_empty() => "✓".to_owned(),
            _ => format!("✓ without {missing}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::Need;

    #[test]
    fn every_case_proves_something() {
        for case in CASES {
            let group = case.name.split('/').next().unwrap();
            assert!(PRIMITIVES.iter().any(|(_, groups)| groups.contains(&group)), "{group} is in no column");
        }
    }

    #[test]
    fn a_cell_says_what_was_seen_and_what_is_missing() {
        let powers = Powers::new(&[], "not ours to disturb").lacks(&[Need::Permits], "it has no counters");
        let matrix = Matrix::default();
        for case in CASES.iter().filter(|case| powers.lack(case.needs).is_none()) {
            matrix.note(case.name, true);
        }
        matrix.note("multi/holds_each_of_them", false);
        matrix.note("multi/holds_each_of_them", true);
        let [head, row] = matrix.rows("x", &powers);
        assert_eq!(head, "| | `lock` | `rw_lock` | `semaphore` | `election` | `multi` | `owner` |");
        let without = "✓ without Permits: it has no counters";
        let lock = "✓ without Permits: it has no counters";
        assert_eq!(
            row,
            format!("| x | {lock} | {without} | – Permits: it has no counters | {without} | ✗ 1 failed | {without} |")
        );
    }
}
